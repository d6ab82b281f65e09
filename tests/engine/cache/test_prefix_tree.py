"""The prefix tree: what every tree must be, against a recursive definition of the same tree."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.engine.cache.prefix_tree import LOOKAHEAD, Node, PrefixTree

Prompt = tuple[int, ...]
Shape = tuple[Prompt, int, frozenset[int], tuple["Shape", ...]]

# Two letters and short prompts: most pairs share something, and many are equal or prefixes.
PROMPT = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)
BRANCHY = st.lists(PROMPT, min_size=1, max_size=12)
LONG = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(tuple)
GROWN = st.lists(
    st.tuples(st.sampled_from(["0" * 9, "0" * 9 + "1" * 5, "2"]), LONG), min_size=1, max_size=10
).map(lambda pairs: [(*map(int, stem), *rest) for stem, rest in pairs])
PROMPTS = BRANCHY | GROWN
BLOCK_SIZE = st.integers(1, 6)


def shape(node: Node) -> Shape:
    """A node and all below it as plain values."""
    below = tuple(shape(child) for child in node.children)
    return tuple(node.tokens.tolist()), node.position, frozenset(node.requests), below


def shapes(tree: PrefixTree) -> set[Shape]:
    return {unordered(shape(root)) for root in tree.root_nodes}


def unordered(one: Shape) -> Shape:
    tokens, position, requests, below = one
    return tokens, position, requests, tuple(sorted((unordered(b) for b in below), key=repr))


def defined(
    prompts: list[Prompt], members: list[int], start: int, at: int, size: int
) -> set[Shape]:
    """The tree's definition, written down as a recursion.

    members: prompts that agree before position `at`, of which [start, at) stands in no node yet.
    """
    found = set()
    for first in {prompts[i][at : at + 1] for i in members}:
        same = [i for i in members if prompts[i][at : at + 1] == first]
        if not first:  # these end at `at`, where a branch too short for a node stands
            found.add((prompts[same[0]][start:at], start, frozenset(same), ()))
            continue
        end = at
        while all(len(prompts[i]) > end and prompts[i][end] == prompts[same[0]][end] for i in same):
            end += 1
        tokens = prompts[same[0]][start:end]
        ending = [i for i in same if len(prompts[i]) == end]
        further = [i for i in same if len(prompts[i]) > end]
        if not further:
            found.add((tokens, start, frozenset(ending), ()))
        elif end - start >= size:
            below = defined(prompts, further, end, end, size)
            found.add((tokens, start, frozenset(ending), tuple(sorted(below, key=repr))))
        else:
            found |= defined(prompts, same, start, end, size)
    return found


def assert_spells(tree: PrefixTree, ends: list[Node], prompts: list[Prompt]) -> None:
    for prompt, node in zip(prompts, ends, strict=True):
        path = node.path()
        assert tuple(token for step in path for token in step.tokens.tolist()) == prompt
        assert [step.position for step in path] == [0, *(step.end for step in path[:-1])]
        assert path[0] in tree.root_nodes
        for above, below in pairwise(path):
            assert below in above.children and below.parent is above


@given(PROMPTS, BLOCK_SIZE)
def test_every_path_spells_its_prompt(prompts: list[Prompt], block_size: int) -> None:
    tree = PrefixTree(block_size)
    ends = tree.insert(prompts)
    assert_spells(tree, ends, prompts)
    for index, node in enumerate(ends):
        assert index in node.requests
    assert sum(len(node.requests) for node in tree.nodes()) == len(prompts)


@given(PROMPTS, BLOCK_SIZE)
def test_the_tree_is_the_one_defined(prompts: list[Prompt], block_size: int) -> None:
    tree = PrefixTree.build(prompts, block_size)
    expected = defined(prompts, list(range(len(prompts))), 0, 0, block_size)
    assert shapes(tree) == expected


@given(PROMPTS, BLOCK_SIZE)
def test_only_branches_of_a_block_are_nodes(prompts: list[Prompt], block_size: int) -> None:
    tree = PrefixTree.build(prompts, block_size)
    families = [tree.root_nodes]
    for node in tree.nodes():
        assert node.length > 0
        if node.children:
            assert node.length >= block_size
            assert len(node.children) > 1 or node.requests, "a node that splits nothing"
            families.append(node.children)
        else:
            assert node.requests, "a leaf where no prompt ends"
    for family in families:
        for a, b in combinations(family, 2):
            pairs = zip(a.tokens.tolist(), b.tokens.tolist(), strict=False)
            common = next((i for i, (x, y) in enumerate(pairs) if x != y), min(a.length, b.length))
            assert common < block_size, "a block that could have been shared"


@given(PROMPTS)
def test_blocks_of_one_token_share_everything(prompts: list[Prompt]) -> None:
    tree = PrefixTree.build(prompts, 1)
    unique = {prompt[: i + 1] for prompt in prompts for i in range(len(prompt))}
    assert tree.num_tokens == len(unique)


@given(PROMPTS, BLOCK_SIZE, st.randoms(use_true_random=False))
def test_splits_do_not_depend_on_the_order(
    prompts: list[Prompt], block_size: int, rng: random.Random
) -> None:
    order = list(range(len(prompts)))
    rng.shuffle(order)
    tree = PrefixTree.build(prompts, block_size)
    shuffled = PrefixTree.build([prompts[i] for i in order], block_size)
    for node in shuffled.nodes():
        node.requests = [order[i] for i in node.requests]
    assert shapes(shuffled) == shapes(tree)


@given(PROMPTS)
def test_tree_order_is_the_order_of_the_prompts(prompts: list[Prompt]) -> None:
    """Siblings stand by the first prompt below them, where no branch is too short for a node."""

    def first(node: Node) -> int:
        return min([*node.requests, *(first(child) for child in node.children)])

    tree = PrefixTree.build(prompts, 1)
    for family in [tree.root_nodes, *(node.children for node in tree.nodes())]:
        assert [first(node) for node in family] == sorted(first(node) for node in family)


@given(PROMPTS, PROMPTS, BLOCK_SIZE)
def test_a_later_insert_never_touches_a_node(
    prompts: list[Prompt], later: list[Prompt], block_size: int
) -> None:
    tree = PrefixTree(block_size)
    ends = tree.insert(prompts)
    before = {node: (node.tokens.tolist(), node.position, node.parent) for node in tree.nodes()}
    children = {node: list(node.children) for node in before}
    new = tree.insert(later, first_index=len(prompts))
    assert_spells(tree, ends + new, prompts + later)
    for node, then in before.items():
        assert (node.tokens.tolist(), node.position, node.parent) == then
        assert node.children[: len(children[node])] == children[node]
    assert not set(new) & set(before), "logits of a node that stands are gone"
    for index, node in enumerate(new, start=len(prompts)):
        assert index in node.requests


def parts(node: Node) -> list[Prompt]:
    return [tuple(step.tokens.tolist()) for step in node.path()]


@pytest.mark.slow
@given(PROMPTS, PROMPTS, BLOCK_SIZE)
def test_where_prompts_part_does_not_depend_on_what_stands(
    prompts: list[Prompt], later: list[Prompt], block_size: int
) -> None:
    tree, alone = PrefixTree(block_size), PrefixTree(block_size)
    tree.insert(prompts)
    for node, own in zip(tree.insert(later), alone.insert(later), strict=True):
        assert parts(node) == parts(own)


@pytest.mark.turn(4)
@given(PROMPTS, PROMPTS, BLOCK_SIZE)
def test_what_stands_is_not_doubled(
    prompts: list[Prompt], later: list[Prompt], block_size: int
) -> None:
    """Unless a later prompt ends with it."""
    tree = PrefixTree(block_size)
    tree.insert(prompts)
    tree.insert(later, first_index=len(prompts))
    for family in [tree.root_nodes, *(node.children for node in tree.nodes())]:
        seen: set[Prompt] = set()
        for node in family:
            tokens = tuple(node.tokens.tolist())
            new = any(index >= len(prompts) for index in node.requests)
            assert tokens not in seen or new
            seen.add(tokens)


def test_a_fork_is_not_shared_by_later_prompts() -> None:
    tree = PrefixTree(2)
    [leaf] = tree.insert([[1, 2, 3]])
    fork = tree.hang(leaf, [4, 5], fork=True)
    tree.hang(fork, [6], fork=True)
    ends = tree.insert([[1, 2, 3, 4, 5, 7], [1, 2, 3, 4, 5, 8], [1, 2, 3, 9]])
    assert [parts(node) for node in ends][::2] == [[(1, 2, 3), (4, 5), (7,)], [(1, 2, 3), (9,)]]
    assert all(node.path()[0] is leaf and fork not in node.path() for node in ends)
    assert tree.deepest_match([1, 2, 3, 4, 5, 6, 7]) in (fork, ends[0].parent)


@pytest.mark.turn(4)
@given(PROMPTS, PROMPTS, BLOCK_SIZE)
def test_the_deepest_match(prompts: list[Prompt], late: list[Prompt], block_size: int) -> None:
    tree = PrefixTree.build(prompts, block_size)
    for prompt in late:
        matches = []
        for node in tree.nodes():
            path = node.path()
            begins = prompt[: node.end] == tuple(t for step in path for t in step.tokens.tolist())
            if begins and node.end < len(prompt) and all(n.length >= block_size for n in path):
                matches.append(node.end)
        found = tree.deepest_match(prompt)
        assert (found.end if found else 0) == max(matches, default=0)


def test_a_chain_of_two_thousand_nodes() -> None:
    prompt = list(range(4_000))
    tree = PrefixTree.build([prompt[: 2 * i + 2] for i in range(2_000)], 2)
    assert tree.num_tokens == 4_000
    [last] = PrefixTree.build([prompt], 2).root_nodes
    assert parts(last) == [tuple(prompt)]


@given(PROMPTS, BLOCK_SIZE)
def test_nodes_go_leaves_first(prompts: list[Prompt], block_size: int) -> None:
    tree = PrefixTree.build(prompts, block_size)
    nodes = list(tree.nodes())
    for node in reversed(nodes):
        tree.remove(node)
    assert not tree.root_nodes and tree.num_tokens == 0


def test_a_node_with_children_stays() -> None:
    tree = PrefixTree.build([[1, 2, 3], [1, 2, 4]], 2)
    with pytest.raises(AssertionError, match="still in use"):
        tree.remove(tree.root_nodes[0])


def test_few_shot_problems_and_samples() -> None:
    shots, problems = list(range(100, 140)), [[1, 2, 3], [1, 2, 4, 5], [6]]
    tree = PrefixTree.build([shots + problem for problem in problems], 16)
    assert [shape(root) for root in tree.root_nodes] == [
        (tuple(shots), 0, frozenset(), tuple((tuple(problem), 40, frozenset([i]), ())
         for i, problem in enumerate(problems)))
    ]  # fmt: skip
    assert tree.num_tokens == 40 + 3 + 4 + 1  # [1, 2] is shorter than a block: stored twice


def test_a_prefix_of_another_prompt_splits_it() -> None:
    tree = PrefixTree.build([[1, 2, 3, 4, 5], [1, 2, 3]], 2)
    assert [shape(root) for root in tree.root_nodes] == [
        ((1, 2, 3), 0, frozenset([1]), (((4, 5), 3, frozenset([0]), ()),))
    ]


def test_equal_prompts_are_one_leaf() -> None:
    tree = PrefixTree.build([[1, 2]] * 3, 16)
    assert [shape(root) for root in tree.root_nodes] == [((1, 2), 0, frozenset([0, 1, 2]), ())]


def test_a_forest_without_a_root() -> None:
    tree = PrefixTree.build([[1], [2, 2], [3, 3, 3]], 1)
    assert [root.tokens.tolist() for root in tree.root_nodes] == [[1], [2, 2], [3, 3, 3]]


def test_a_prompt_that_ends_at_a_standing_node_gets_a_node_of_its_own() -> None:
    tree = PrefixTree(2)
    [first] = tree.insert([[1, 2, 3, 4]])
    [second] = tree.insert([[1, 2, 3, 4]], first_index=1)
    assert second is not first and tree.root_nodes == [first, second]
    assert (first.requests, second.requests) == ([0], [1])


def test_an_empty_prompt_has_no_node() -> None:
    with pytest.raises(AssertionError, match="empty prompt"):
        PrefixTree(16).insert([[1], []])


def test_two_thousand_prompts_below_one_document() -> None:
    rng = random.Random(0)
    document = [rng.randrange(50_000) for _ in range(5_000)]
    prompts = [[*document, *(rng.randrange(50_000) for _ in range(20))] for _ in range(2_000)]
    tree = PrefixTree.build(prompts, 16)
    assert tree.num_tokens == 5_000 + 20 * 2_000
    assert len(tree.root_nodes) == 1 and len(tree.root_nodes[0].children) == 2_000


@pytest.mark.slow
@pytest.mark.turn(10)
@settings(max_examples=3_000, deadline=None)
@given(PROMPTS, BLOCK_SIZE)
def test_many_more_trees_are_the_ones_defined(prompts: list[Prompt], block_size: int) -> None:
    tree = PrefixTree.build(prompts, block_size)
    assert shapes(tree) == defined(prompts, list(range(len(prompts))), 0, 0, block_size)


@given(PROMPTS, BLOCK_SIZE, st.data())
def test_some_prompts_of_a_tree_part_where_all_did(
    prompts: list[Prompt], block_size: int, data: st.DataObject
) -> None:
    """Whatever is left out: paths are split alike, and a node is shared as far as it was."""
    of_all = PrefixTree(block_size).insert(prompts)
    some = data.draw(st.lists(st.sampled_from(range(len(prompts))), unique=True))
    tree = PrefixTree(block_size)
    ends = tree.insert([prompts[i] for i in some], splits=[of_all[i].splits() for i in some])
    assert_spells(tree, ends, [prompts[i] for i in some])
    for place, i in enumerate(some):
        assert place in ends[place].requests
        assert ends[place].splits() == of_all[i].splits()
    for (a, i), (b, j) in combinations(enumerate(some), 2):
        shared = [x is y for x, y in zip(of_all[i].path(), of_all[j].path(), strict=False)]
        assert [x is y for x, y in zip(ends[a].path(), ends[b].path(), strict=False)] == shared


@given(PROMPTS, BLOCK_SIZE, st.data())
def test_a_restricted_tree_is_split_as_it_was(
    prompts: list[Prompt], block_size: int, data: st.DataObject
) -> None:
    """What is kept lies where it lay, under new numbers, and no node is left without a prompt."""
    tree = PrefixTree.build(prompts, block_size)
    splits = {request: node.splits() for node in tree.nodes() for request in node.requests}
    some = data.draw(st.lists(st.sampled_from(range(len(prompts))), unique=True))
    tree.restrict({i: place for place, i in enumerate(some)})
    found = {request: node.splits() for node in tree.nodes() for request in node.requests}
    assert found == {place: splits[i] for place, i in enumerate(some)}
    assert all(node.requests or node.children for node in tree.nodes())


def test_many_prompts_of_one_prefix_have_one_root() -> None:
    """The last ones go on alike: looked at apart they had a longer root of their own."""
    shots, alike = list(range(40)), list(range(100, 130))
    prompts = [[*shots, 200 + i, i] for i in range(LOOKAHEAD)]
    prompts += [[*shots, *alike, i] for i in range(3)]
    [root] = PrefixTree.build(prompts, 16).root_nodes
    assert root.tokens.tolist() == shots
    [below] = [child for child in root.children if child.children]
    assert below.tokens.tolist() == alike
