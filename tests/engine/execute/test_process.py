"""Threads are used where they pay, and left as they were; collections and Ctrl-C during a job."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
import torch

from sharegen.engine.execute import process
from sharegen.engine.execute.process import short_collections, uninterrupted
from tests.engine.jobs import GREEDY, forest, loaded, make_engine, requests_of, run


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_threads_that_only_wait_are_not_used(two_threads: None) -> None:
    """A batch of one row of a tiny model has nothing to divide."""
    found = (process.best_threads(loaded("llama"), 1) for _ in range(5))
    assert 1 in found  # it is timed, and what runs beside it may hold up either
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("together", "best"), [(0.2, 2), (0.29, 1), (0.4, 1), (0.6, 2)])
def test_they_must_be_worth_it(
    together: float, best: int, two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against 0.4 s of one thread; steps that last longer than that are not tried twice."""
    monkeypatch.setattr(
        process, "_seconds", lambda model, rows: 0.4 if torch.get_num_threads() == 1 else together
    )
    assert process.best_threads(loaded("llama"), 8) == best


@pytest.mark.turn(3)
def test_results_do_not_depend_on_them(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = requests_of(forest(), GREEDY, samples=2)
    results = []
    for count in (1, 2):
        monkeypatch.setattr("sharegen.engine.prepared.best_threads", lambda *_, n=count: n)
        results.append(run(make_engine(loaded("llama")), requests).results)
        assert torch.get_num_threads() == 2
    assert results[0] == results[1]


def test_what_was_there_is_left_out_for_as_long_as_the_job_runs() -> None:
    before = len(gc.get_objects())
    with pytest.raises(KeyError), short_collections():
        assert len(gc.get_objects()) < before / 10
        raise KeyError
    assert len(gc.get_objects()) > before / 2


def test_what_a_job_leaves_in_cycles_is_collected() -> None:
    with short_collections():
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() > 0


def test_ctrl_c_waits_for_the_end_and_the_second_one_does_not() -> None:
    handler, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("the rest")
    assert done and signal.getsignal(signal.SIGINT) is handler
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.clear()
    assert done and signal.getsignal(signal.SIGINT) is handler
