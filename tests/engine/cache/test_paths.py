"""Where later prompts are split: on earlier nodes, by what was read alone."""

from __future__ import annotations

import random

from sharegen.engine.cache.paths import Paths
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.request import Request, SamplingParams

SHOTS = list(range(100, 140))


def window(*tails: list[int]) -> list[list[int]]:
    return [SHOTS + tail for tail in tails]


def test_the_first_window_is_split_as_a_tree() -> None:
    prompts = window([1, 2], [1, 3], [4])
    leaves = PrefixTree(4).insert(prompts)
    assert (
        Paths(4).splits(prompts)
        == [leaf.splits() for leaf in leaves]
        == [[40, 42]] * 2 + [[40, 41]]
    )


def test_a_later_window_falls_on_it_although_it_shares_a_little_more() -> None:
    paths = Paths(4)
    paths.splits(window([1], [2]))
    assert paths.splits(window([3, 1], [3, 2])) == [[40, 42], [40, 42]]
    assert paths.splits(window([3] * 5 + [1], [3] * 5 + [2])) == [[40, 45, 46]] * 2
    assert paths.splits(window([3] * 5 + [7])) == [[40, 45, 46]]


def test_not_where_that_costs_more_than_it_saves() -> None:
    """Thirty prompts would each have two tokens to themselves, to find forty."""
    paths = Paths(4)
    paths.splits(window([1], [2]))
    assert paths.splits(window(*([3, 3, i] for i in range(30)))) == [[42, 43]] * 30


def test_a_prompt_alone_parts_from_another_that_was_alone() -> None:
    paths = Paths(4)
    assert paths.splits(window([1, 1])) == [[42]]
    assert paths.splits(window([1, 1])) == [[42]]  # the same again parts nowhere
    assert paths.splits(window([2, 2])) == [[40, 42]]
    assert paths.splits(window([3])) == [[40, 41]]
    assert paths.splits([SHOTS]) == [[40]]  # it goes on nowhere


def test_requests_say_it() -> None:
    """To workers, which hear of some of them alone."""
    request = Request(0, [*SHOTS, 1], SamplingParams(n=1), [0])
    [told] = Paths(4).with_splits([request])
    assert told.splits == [41] and told.is_alone(1) and told.samples == [0]


def test_what_was_read_decides_whatever_is_left_to_draw() -> None:
    rng = random.Random(0)
    prompts = [SHOTS[: rng.randrange(1, 41)] + rng.choices(range(9), k=9) for _ in range(60)]
    params = SamplingParams()

    def told(is_done: int) -> list[list[int]]:
        paths = Paths(4)
        requests = [Request(i, p, params, range(i >= is_done)) for i, p in enumerate(prompts)]
        windows = [paths.with_splits(requests[i : i + 7]) for i in range(0, 60, 7)]
        return [list(request.splits or ()) for each in windows for request in each]

    assert told(0) == told(30) == told(60)
    for prompt, ends in zip(prompts, told(0), strict=True):
        assert ends[-1] == len(prompt) and ends == sorted(set(ends))
        assert all(b - a >= 4 for a, b in zip([0, *ends], ends[:-1], strict=False))
