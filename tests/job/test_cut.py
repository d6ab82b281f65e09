"""The cut of a job: whole problems, none lost, and the largest part as small as can be."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.engine.cache.prefix_tree import Node, PrefixTree
from sharegen.job.cut import Cut, copied_by_workers, cut

Prompt = tuple[int, ...]

# Few letters and short prompts: ragged, equal, within others, with a root and without.
RAGGED = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple), min_size=1)
ROOTED = RAGGED.map(lambda prompts: [(*[9] * 20, *prompt) for prompt in prompts])
FOREST = st.lists(
    st.tuples(st.integers(2, 5), st.lists(st.integers(0, 1), min_size=1, max_size=9)), min_size=1
).map(lambda pairs: [(*[stem] * 8 * stem, *own) for stem, own in pairs])
PROMPTS = RAGGED | ROOTED | FOREST
BLOCK_SIZE = st.integers(1, 6)
TOKENS = st.integers(1, 60)


def built(prompts: list[Prompt], block_size: int) -> PrefixTree:
    return PrefixTree.build(prompts, block_size)


def ends(tree: PrefixTree) -> dict[int, Node]:
    return {request: node for node in tree.nodes() for request in node.requests}


def work(tree: PrefixTree, problems: list[int], tokens: int) -> int:
    """What a part costs, by its definition."""
    leaves = ends(tree)
    nodes = {id(node): node.length for i in problems for node in leaves[i].path()}
    return sum(nodes.values()) + tokens * len(problems)


@given(PROMPTS, BLOCK_SIZE, TOKENS, st.integers(1, 9))
def test_every_problem_is_in_one_part(
    prompts: list[Prompt], block_size: int, tokens: int, parts: int
) -> None:
    tree = built(prompts, block_size)
    found = cut(tree, tokens, parts)
    assert len(found.parts) == parts
    assert sorted(i for part in found.parts for i in part.problems) == list(range(len(prompts)))
    assert sum(len(part.problems) > 0 for part in found.parts) == min(parts, len(prompts))
    for part in found.parts:
        problems = part.problems.tolist()
        assert problems == sorted(problems)
        assert part.work == work(tree, problems, tokens)
        assert part.prompt_tokens == part.work - tokens * len(problems)
    assert found.prompt_tokens == tree.num_tokens
    assert found.copied == sum(part.prompt_tokens for part in found.parts) - tree.num_tokens >= 0
    assert found.imbalance >= 1 or parts == 1


@given(PROMPTS, BLOCK_SIZE, TOKENS, st.integers(1, 9))
def test_no_part_is_more_than_a_problem_above_an_even_share(
    prompts: list[Prompt], block_size: int, tokens: int, parts: int
) -> None:
    tree = built(prompts, block_size)
    whole = work(tree, list(range(len(prompts))), tokens)
    largest = max(work(tree, [i], tokens) for i in range(len(prompts)))
    assert max(part.work for part in cut(tree, tokens, parts).parts) <= whole / parts + largest


@given(
    st.lists(st.sampled_from(["ab", "abc", "d", "dd", "de", "f"]), min_size=1, max_size=8), TOKENS
)
def test_no_other_cut_into_spans_has_a_smaller_largest_part(words: list[str], tokens: int) -> None:
    prompts = [tuple(ord(letter) for letter in word for _ in range(7)) for word in words]
    tree = built(prompts, 4)
    order = [request for node in tree.nodes() for request in node.requests]
    for parts in range(1, len(order) + 1):
        best = min(
            max(
                work(tree, order[s:e], tokens)
                for s, e in zip((0, *inner), (*inner, len(order)), strict=True)
            )
            for inner in combinations(range(1, len(order)), parts - 1)
        )
        assert max(part.work for part in cut(tree, tokens, parts).parts) == best


def test_a_document_stays_with_its_questions() -> None:
    prompts = [(*[d] * 1000, 7, q) for q in range(5) for d in range(1, 5)]  # dealt in turns
    found = cut(built(prompts, 1), 20, 4)
    documents = [{prompts[i][0] for i in part.problems} for part in found.parts]
    assert sorted(map(sorted, documents)) == [[1], [2], [3], [4]]
    assert found.copied == 0 and found.imbalance == 1


def test_what_all_share_is_copied_to_every_part() -> None:
    prompts = [(*range(100), 1000 + i) for i in range(12)]
    found = cut(built(prompts, 16), 50, 4)
    assert [part.problems.tolist() for part in found.parts] == [
        [3 * i, 3 * i + 1, 3 * i + 2] for i in range(4)
    ]
    assert found.copied == 300
    assert [part.prompt_tokens for part in found.parts] == [103] * 4


def test_a_long_problem_does_not_starve_the_parts_after_it() -> None:
    prompts = [(1,) * 10_000, (2,), (3,), (4,)]
    found = cut(built(prompts, 16), 5, 4)
    assert [part.problems.tolist() for part in found.parts] == [[0], [1], [2], [3]]


def test_more_parts_than_problems() -> None:
    found = cut(built([(1,), (2,)], 16), 5, 5)
    assert [part.problems.tolist() for part in found.parts] == [[0], [1], [], [], []]
    assert [part.work for part in found.parts] == [6, 6, 0, 0, 0]


PROGRAM = """
from random import Random
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.job.cut import cut
rng = Random(1)
prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 30))] for _ in range(300)]
print(cut(PrefixTree.build(prompts, 3), 40, 7).fingerprint)
"""


def test_every_process_finds_the_same_cut() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert found == {"fa68279508002579\n"}  # on any machine


def test_the_fingerprint_tells_cuts_apart() -> None:
    tree = built([(i,) * 9 for i in range(20)], 4)
    assert cut(tree, 5, 3).fingerprint == cut(tree, 50, 3).fingerprint
    assert len({cut(tree, 5, parts).fingerprint for parts in range(1, 25)}) == 24
    assert Cut((), 0).fingerprint != cut(tree, 5, 1).fingerprint


@pytest.mark.slow
def test_a_million_problems() -> None:
    """A flat tree, as of a dataset under one few-shot prefix, without its tokens."""
    tree = PrefixTree(16)
    root = tree.hang(None, range(1000))
    for i in range(1_000_000):
        leaf = Node(np.zeros(50 + i % 97, np.int32), 1000, root)
        leaf.requests.append(i)
        root.children.append(leaf)
    started = time.monotonic()
    found = cut(tree, 16 * 256, 256)
    assert time.monotonic() - started < 60
    assert found.imbalance < 1.001 and found.copied == 255 * 1000


@given(PROMPTS, BLOCK_SIZE, st.integers(1, 9))
def test_what_workers_copy(prompts: list[Prompt], block_size: int, workers: int) -> None:
    """Even stretches of the tree's order, and of parts of a problem where there are fewer."""
    tree = built(prompts, block_size)
    order = [i for node in tree.nodes() for i in node.requests]
    count = len(order)
    if workers > count:
        order = [i for i in order for _ in range(workers)]
    bounds = [round(worker * len(order) / workers) for worker in range(workers + 1)]
    parts = [order[start:end] for start, end in itertools.pairwise(bounds)]
    computed = sum(work(tree, part, 0) for part in parts)
    assert copied_by_workers(tree, workers) == computed - tree.num_tokens
