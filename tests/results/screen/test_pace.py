"""Tokens over time: few points, the true end, and one line through all runs of a journal."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sharegen.results.screen.pace import MOST_POINTS, Pace


@pytest.mark.parametrize("count", [1, 99, 100, 101, 5_000])
def test_points_are_few_rise_and_end_at_the_end(count: int) -> None:
    pace = Pace({}, {})
    for step in range(count):
        pace.note(0.01 * step, 7 * step)
    points = pace.close(0.01 * count, 7 * count)
    assert points[-1] == [pytest.approx(0.01 * count), 7 * count]
    assert len(points) <= MOST_POINTS and len(points) >= min(count, MOST_POINTS // 2)
    assert all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(points))
    gaps = [b[0] - a[0] for a, b in pairwise(points)]
    assert max(gaps, default=0) <= 0.01 * count / 10 + 0.011


def test_a_later_run_goes_on_where_the_earlier_one_ended() -> None:
    first = Pace({}, {})
    first.note(1.0, 100)
    timings = {"sampling_seconds": 2.0, "progress": first.close(2.0, 250)}
    second = Pace(timings, {"generated_tokens": 250})
    second.note(0.5, 40)
    assert second.close(1.5, 90) == [[1.0, 100], [2.0, 250], [2.5, 290], [3.5, 340]]


def test_many_short_runs_stay_few_points() -> None:
    timings: dict[str, object] = {}
    for run in range(300):
        pace = Pace(timings, {"generated_tokens": run})
        timings = {"sampling_seconds": run + 1.0, "progress": pace.close(1.0, 1)}
    points = pace.points
    assert len(points) <= MOST_POINTS and points[-1] == [300.0, 300]


def test_a_run_that_ends_at_once_replaces_the_last_point() -> None:
    pace = Pace({"sampling_seconds": 2.0, "progress": [[2.0, 10]]}, {"generated_tokens": 10})
    assert pace.close(0.0, 0) == [[2.0, 10]]
