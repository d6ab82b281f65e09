from __future__ import annotations

import json

import pytest

from sharegen.cli.plan import _state_rows
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.job.sharing_plan import Branch, SharingPlan, make_plan, most_blocks, shared_tokens

SHOT = list(range(100))


def plan(prompts: list[list[int]], **sizes: int) -> SharingPlan:
    values = {"num_blocks": 1000, "kv_bytes_per_token": 10, "max_sequences": 99}
    names = [f"p{i}" for i in range(len(prompts))]
    return make_plan(tree_of(prompts), prompts, names, 4, 20, **{**values, **sizes})


def prompts(count: int, own: int = 30) -> list[list[int]]:
    return [SHOT + [1000 + i] * own for i in range(count)]


def tree_of(prompts: list[list[int]]) -> PrefixTree:
    return PrefixTree.build(prompts, 16)


def test_tokens_and_bytes() -> None:
    made = plan(prompts(3))
    assert (made.problems, made.samples, made.nodes) == (3, 12, 4)
    assert (made.asked, made.computed) == (4 * 3 * 130, 100 + 3 * 30)
    assert (made.kv_unshared_bytes, made.kv_shared_bytes) == (15_600, 1_900)
    assert made.kv_suffix_bytes == 200 and made.kv_cache_bytes == 160_000
    assert (made.fit, made.waves, made.duplicated) == (12, 1, 0)


def test_short_branches_are_counted_as_duplicated() -> None:
    both = [[1] * 5 + [2] * 20, [1] * 5 + [3] * 20]
    made = plan(both)
    assert made.computed == 50 and made.duplicated == 5 and made.nodes == 2


@pytest.mark.parametrize(
    ("sizes", "fit", "waves"),
    [
        ({"max_sequences": 5}, 5, 3),
        # 7 blocks of examples, 2 of a problem, 2 of each sample
        ({"num_blocks": 7 + 2 + 2}, 1, 12),
        ({"num_blocks": 7 + 2 + 4 * 2 + 2 + 2}, 5, 3),
        ({"num_blocks": 7 + 2 + 4 * 2 + 2 + 1}, 4, 3),
        ({"num_blocks": 10}, 0, 0),
        ({"num_blocks": 0}, 0, 0),
    ],
)
def test_how_many_fit(sizes: dict[str, int], fit: int, waves: int) -> None:
    made = plan(prompts(3), **sizes)
    assert (made.fit, made.waves) == (fit, waves)


def test_the_middle_is_folded() -> None:
    (root,) = plan(prompts(10)).branches
    assert (root.tokens, root.problems, root.samples, root.problem) == (100, 10, 40, None)
    assert [child.problem for child in root.children] == ["p0", "p1", None, "p9"]
    assert root.children[2] == Branch(tokens=7 * 30, problems=7, samples=28, repeat=7)
    assert len(plan(prompts(4)).branches[0].children) == 4


def test_a_forest_and_a_prompt_within_another() -> None:
    made = plan([SHOT, SHOT + [7] * 20, [9] * 40, [9] * 40])
    first, second = made.branches
    assert (first.problem, first.problems, first.children[0].problem) == ("p0", 2, "p1")
    assert (second.problem, second.problems, second.samples) == ("p2", 2, 8)


def test_json_and_back() -> None:
    made = plan(prompts(10))
    assert SharingPlan.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_a_job_never_uses_more_than_its_most_blocks() -> None:
    # 7 blocks of examples, 3 problems of 2, 5 sequences of 2 and 2 ahead
    assert most_blocks(tree_of(prompts(3)), 4, 20, 5) == 7 + 3 * 2 + 5 * 4
    assert most_blocks(tree_of(prompts(1)), 4, 20, 5) == 9 + 4 * 4  # 130 tokens are one node
    blocks = most_blocks(tree_of(prompts(3)), 4, 20, 99)
    assert plan(prompts(3), num_blocks=blocks).fit == 12


def test_prompts_that_go_on_from_each_other_without_end() -> None:
    """Nodes below nodes, a thousand levels: what is too deep to show is summed up."""
    whole = list(range(20_000))
    made = plan([whole[: 20 * (i + 1)] for i in range(1_000)])
    assert (made.problems, made.nodes, made.computed) == (1_000, 1_000, 20_000)
    branch, levels = made.branches[0], 1
    while branch.children:
        [branch], levels = branch.children, levels + 1
    assert levels < 20 and branch.repeat > 900 and branch.problems == branch.repeat
    assert SharingPlan.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_tokens_that_some_prompts_share_with_others() -> None:
    tree = tree_of(prompts(3))  # 100 tokens of all, 30 of each
    assert shared_tokens(tree, [True, False, False], [False, True, True]) == 100
    assert shared_tokens(tree, [True, True, False], [False, True, True]) == 130
    assert shared_tokens(tree, [True, True, True], [True, True, True]) == tree.num_tokens
    assert shared_tokens(tree, [False, False, False], [True, True, True]) == 0


def test_states_take_slots() -> None:
    """Of 7 slots the root and two leaves take one each, and four samples the others."""
    prompts = [[*range(20), 50 + i, *range(20)] for i in range(3)]
    tree = PrefixTree.build(prompts, 4)
    how = {"num_blocks": 1000, "kv_bytes_per_token": 2, "max_sequences": 64}
    plan = make_plan(tree, prompts, ["a", "b", "c"], 2, 8, **how, state_bytes=100, state_slots=7)
    assert (plan.fit, plan.nodes, plan.state_bytes, plan.state_slots) == (4, 4, 100, 7)
    rows = {str(row[0]): str(row[1]) for row in _state_rows(plan)}
    assert rows["state of the prompts"] == "600 B stored for every sample, 400 B shared"
    assert "one of 7 slots in 700 B" in rows["state of one completion"]
    assert plan.whole == 0 and len(rows) == 2
    assert make_plan(tree, prompts, ["a", "b", "c"], 2, 8, **how).fit == 6
    tight = make_plan(tree, prompts, ["a", "b", "c"], 2, 8, **how, state_bytes=100, state_slots=3)
    assert tight.whole == 3  # a root, a leaf, a row, and a node that moves on
    assert "too few slots for 3 problems" in _state_rows(tight)[-1][1]
