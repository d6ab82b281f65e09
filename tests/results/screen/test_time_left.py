"""The time left, told while jobs go on that were recorded or are simulated, against what it was."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.results.screen.time_left import TimeLeft

RECORDED = Path(__file__).parent / "pace"
"""Jobs of the bundled model on two quiet cores: 40 problems x 20 samples, and 29 others x 8. At
each moment milliseconds, tokens drawn, samples that run, and the tokens of one that ended or 0."""

Moment = tuple[float, int, int, list[int]]
"""Seconds, tokens drawn, samples that run, tokens of those that ended."""


def recorded(name: str) -> list[Moment]:
    rows = json.loads((RECORDED / f"{name}.json").read_text())
    return [
        (ms / 1000, drawn, running, [ended] if ended else []) for ms, drawn, running, ended in rows
    ]


def lengths(moments: list[Moment]) -> Counter[int]:
    return Counter(tokens for *_, ended in moments for tokens in ended)


def simulated(
    samples: list[int], rows: int, step: float, row: float, prompt: float = 0.001
) -> Iterator[Moment]:
    """Continuous batching; a step takes `step` and `row` a row, a prompt `prompt` seconds."""
    waiting, running, now, drawn = samples[::-1], [], 0.0, 0  # type: ignore[var-annotated]
    while waiting or running:
        new = min(32, rows - len(running), len(waiting))
        running += [[waiting.pop(), 0] for _ in range(new)]
        now += prompt * new + step + row * len(running)
        drawn += len(running)
        for one in running:
            one[1] += 1
        ended = [length for length, age in running if age == length]
        running = [one for one in running if one[1] < one[0]]
        yield now, drawn, len(running), ended


def told(
    moments: list[Moment],
    longest: int | None,
    before: Mapping[int, int],
    every: int,
    on_gpu: bool = False,
) -> Iterator[tuple[float, float]]:
    """(seconds left, seconds that were told) from a tenth of the job on."""
    left = TimeLeft(longest, before, on_gpu)
    unfinished, end = sum(lengths(moments).values()), moments[-1][0]
    for place, (now, drawn, running, ended) in enumerate(moments):
        left.observe(now, drawn, running)
        for tokens in ended:
            left.finish(tokens, is_copy=False)
        unfinished -= len(ended)
        if now > end / 10 and place % every == 0:
            seconds = left.left(unfinished).seconds
            assert seconds is not None
            yield end - now, seconds


def within_two(pairs: Iterator[tuple[float, float]], but: float) -> float:
    """How often what is told is right within a factor of two, or by so many seconds."""
    good = [truth / 2 <= said <= 2 * truth or abs(said - truth) <= but for truth, said in pairs]
    return sum(good) / len(good)


def test_a_recorded_job() -> None:
    moments = recorded("whole")
    assert within_two(told(moments, 256, {}, every=5), but=0.5) > 0.95


@pytest.mark.parametrize("longest", [256, 4096, None])
def test_a_recorded_job_that_goes_on_after_another(longest: int | None) -> None:
    """Of 232 samples all run at once; the earlier run's lengths say when the last one ends."""
    moments, before = recorded("rest"), lengths(recorded("whole"))
    assert within_two(told(moments, longest, before, every=5), but=0.75) > 0.97


def log_normal(count: int, mean: float, sigma: float, longest: int) -> list[int]:
    draw = random.Random(3)
    middle = math.log(mean) - sigma**2 / 2
    return [min(longest, max(1, round(math.exp(draw.gauss(middle, sigma))))) for _ in range(count)]


@pytest.mark.parametrize(("step", "row"), [(0.004, 1e-4), (0.02, 2e-6)], ids=["CPU", "GPU"])
@pytest.mark.parametrize(
    ("samples", "longest"),
    [
        (log_normal(2000, 72, 0.35, 256), 256),
        (log_normal(1000, 72, 0.35, 256), None),
        (log_normal(1500, 150, 0.5, 1024), 1024),
        ([256] * 600, 256),
        ([1 + i % 8 for i in range(3000)], 16),
    ],
    ids=["short", "without a limit", "long", "all cut", "a few tokens"],
)
def test_jobs_of_several_shapes(
    samples: list[int], longest: int | None, step: float, row: float
) -> None:
    moments = list(simulated(samples, 256, step, row))
    pairs = told(moments, longest, {}, every=23, on_gpu=step > row * 256)
    assert within_two(pairs, but=0.05 * moments[-1][0]) > 0.9


def test_too_early_to_say() -> None:
    left = TimeLeft(100, {}, on_gpu=False)
    assert left.left(5).seconds is None
    left.observe(1.0, 0, 5)
    assert left.left(5).seconds is None
    assert left.left(5).tokens > 5


def test_copies_cost_nothing() -> None:
    """A greedy request of 8 samples is drawn once, and 7 are copies."""
    left = TimeLeft(50, {}, on_gpu=False)
    for token in range(1, 51):
        left.observe(token / 10, 4 * token, 4)
    left.observe(5.1, 200, 0)
    for _ in range(4):
        for sample in range(8):
            left.finish(50, is_copy=sample > 0)
    assert left.left(32).tokens == pytest.approx(200, rel=0.1)
    assert left.left(0).tokens == 0


def test_samples_that_a_rule_cancels_are_not_waited_for() -> None:
    left = TimeLeft(100, {}, on_gpu=False)
    for token in range(1, 21):
        left.observe(token / 10, 8 * token, 8)
    whole = left.left(16).tokens
    left.cancel(6)
    left.observe(2.1, 168, 8)  # others begin in their place
    assert left.left(8).tokens < 0.8 * whole
    left.cancel(0)
    left.cancel(100)
    left.observe(2.2, 168, 0)
    assert left.left(0).tokens == 0


STEPS = st.lists(
    st.tuples(
        st.floats(0, 1e3),  # seconds until then
        st.integers(0, 10**6),  # tokens drawn
        st.integers(0, 50),  # samples that run
        st.lists(st.integers(0, 5000), max_size=3),  # tokens of those that ended
        st.booleans(),
    ),
    max_size=12,
)


@given(STEPS, st.none() | st.integers(1, 10**6), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_whatever_is_seen_nothing_is_odd(
    steps: list[tuple[float, int, int, list[int], bool]],
    longest: int | None,
    on_gpu: bool,
    unfinished: int,
) -> None:
    """Counts of several engines come late and by turns; a bar must not end a job."""
    left = TimeLeft(longest, {}, on_gpu)
    now, drawn = 0.0, 0
    for seconds, tokens, running, ended, is_copy in steps:
        now, drawn = now + seconds, drawn + tokens
        left.observe(now, drawn, running)
        for length in ended:
            left.finish(length, is_copy)
        found = left.left(unfinished)
        assert 0 <= found.tokens < math.inf
        assert found.seconds is None or 0 <= found.seconds < math.inf


def test_counts_of_one_moment_say_nothing_about_a_pace() -> None:
    """Two looks at one reading of the clock, or nearly: no time is left that is not a number."""
    left = TimeLeft(None, {}, False)
    left.observe(0.0, 1, 0)
    left.observe(5e-161, 2, 0)
    left.finish(0, False)
    assert left.left(0).seconds is None
