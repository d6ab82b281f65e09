"""Dealing to clocks: every sample once, whoever dies; ends even; bad input in one line."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.clocks import Clocks, Speed
from benchmarks.commands import app
from benchmarks.deal import Crew, Shape, bench_deal, ideal_seconds
from sharegen.cli import main
from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.messages import CompletionMessage, Setting, WorkersError
from sharegen.errors import UsageError

SHAPE = Shape(problems=150, samples=4, tokens=80, max_tokens=24, seed=3)


def crew(workers: int, deaths: float = 0.0, slots: int = 4) -> Crew:
    return Crew(workers, slots, steps=10.0, spread=0.2, deaths=deaths, seed=5)


def dealt(shape: Shape, *crews: Crew) -> list[dict[str, Any]]:
    """The bench itself looks that every sample has one line of the journal."""
    return list(bench_deal(shape, crews))


def test_every_sample_once_and_all_end_together() -> None:
    alone, three = dealt(SHAPE, crew(1), crew(3))
    assert alone["duplicated_prefill"] == 0 and alone["died"] == 0
    assert 0 <= alone["over_ideal"] < 0.02
    assert 0 <= three["over_ideal"] < 0.1 and three["last_over_mean_end"] < 1.1
    assert three["duplicated_prefill"] < 0.1
    assert alone["tree_tokens"] == three["tree_tokens"] < SHAPE.problems * SHAPE.tokens / 2


def test_deaths_cost_no_sample() -> None:
    [result] = dealt(SHAPE, crew(8, deaths=0.5))
    assert result["died"] == 4
    assert 0 <= result["over_ideal"] < 0.5


def job(count: int) -> list[Request]:
    stem = list(range(100, 120))
    params = SamplingParams(n=2, max_tokens=9)
    return [Request(i, [*stem, i], params, range(2), splits=[20, 21]) for i in range(count)]


def nine(request: Request, sample: int) -> CompletionMessage:
    return CompletionMessage(
        request.key, sample, [0] * 9, "", "length", None, 0.0, None, None, None
    )


def drawn_by(clocks: Clocks, workers: int, requests: list[Request]) -> list[tuple[int, int]]:
    driver = Driver([Setting("clock", None, EngineConfig())] * workers, clocks)
    found = [(c.request.key, c.sample) for c in driver.generate(requests)]
    driver.close()
    return found


def test_a_clock_keeps_time() -> None:
    """Five rounds of nine steps for ten samples on two rows, and the tree's tokens before."""
    clocks = Clocks([Speed(steps=2.0, slots=2, prefill=0.5)], nine)
    assert len(set(drawn_by(clocks, 1, job(5)))) == 10
    assert clocks.now == pytest.approx((5 * 9 + 0.5 * (20 + 5)) / 2)
    assert clocks.ends() == [pytest.approx(clocks.now)]


@pytest.mark.filterwarnings("ignore:worker . is gone")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 60), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_deaths_at_any_moment(deaths: list[float], seed: int) -> None:
    """Workers of any speed die one after the other; one lives on."""
    steps = np.random.default_rng(seed).uniform(0.5, 5, len(deaths) + 1)
    speeds = [Speed(float(s), 3, 0.01, d) for s, d in zip(steps, [*deaths, math.inf], strict=True)]
    clocks = Clocks(speeds, nine)
    found = drawn_by(clocks, len(speeds), job(30))
    assert sorted(found) == [(i, sample) for i in range(30) for sample in range(2)]
    assert len(clocks.dead) == sum(death < clocks.now for death in deaths)


@pytest.mark.filterwarnings("ignore:worker . is gone")
def test_nobody_is_left() -> None:
    clocks = Clocks([Speed(1.0, 2, 0.0, death) for death in (3.0, 30.0)], nine)
    with pytest.raises(WorkersError, match="the last worker is gone: its time was up"):
        drawn_by(clocks, 2, job(20))


def test_the_ideal_counts_those_who_live() -> None:
    pair = [Speed(1.0, 10, 0.0), Speed(1.0, 10, 0.0, death=2.0)]
    assert ideal_seconds(100.0, pair[:1]) == 10
    assert ideal_seconds(100.0, pair) == pytest.approx(2 + (100 - 40) / 10)
    assert ideal_seconds(30.0, pair) == pytest.approx(1.5)


def test_a_crew_that_dies_out_is_refused() -> None:
    with pytest.raises(UsageError, match="--deaths 1 of --workers 2 leaves nobody"):
        dealt(SHAPE, crew(2, deaths=1.0))


def test_at_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    words = "deal --problems 20 -n 2 --tokens 40 --max-tokens 8 --workers 1 --workers 2"
    with pytest.raises(SystemExit) as ended:
        main(words.split(), app)
    assert ended.value.code == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["workers"] for line in lines] == [1, 2]
    assert all(line["bench"] == "deal" and line["problems"] == 20 for line in lines)


@pytest.mark.slow
@pytest.mark.turn(10)
def test_a_larger_job() -> None:
    """Longer than one lookahead: read in pieces, and even to the end."""
    shape = Shape(problems=20_000, samples=8, tokens=60, max_tokens=64, seed=0)
    for result in dealt(shape, crew(32, deaths=0.1, slots=8), crew(256, deaths=0.01, slots=8)):
        assert 0 <= result["over_ideal"] < 0.1
        assert result["duplicated_prefill"] < 0.2
