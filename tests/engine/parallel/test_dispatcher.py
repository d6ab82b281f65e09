"""Requests that arrive at several engines, each a real process with a tiny model."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharegen.engine.config import EngineConfig
from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.parallel.dispatcher import Dispatcher, Happened
from sharegen.engine.parallel.messages import Setting
from sharegen.errors import UsageError
from tests.engine.parallel.forked import forked
from tests.tiny import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.turn(1)]  # what they cover, nothing else does

CONFIG = EngineConfig(max_sequences=16, kv_cache_memory=8 << 20, block_size=4)
DEATH = pytest.mark.filterwarnings("ignore:worker . is gone")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Dispatcher]:
    folder = save_tiny_model(tmp_path / "tiny")
    found = Dispatcher([Setting(str(folder), None, CONFIG, device="cpu", threads=1)] * 2, forked())
    found.gather()
    found.begin(0)
    yield found
    found.close()


def asked(key: int, max_tokens: int = 12) -> Request:
    params = SamplingParams(n=2, max_tokens=max_tokens, ignore_eos=True)
    return Request(key, [5, 6, 7, 8, key + 10, 9], params, range(2))


def until_done(engines: Dispatcher, happened: Happened | None = None) -> Happened:
    found, until = happened or Happened(), time.monotonic() + 60
    while engines.has_work:
        assert time.monotonic() < until
        more = engines.step()
        found.finished += more.finished
        found.grown += more.grown
        found.refused |= more.refused
        found.lost |= more.lost
    return found


def texts(found: list[Completion]) -> dict[tuple[int, int], list[int]]:
    return {(each.request.key, each.sample): each.token_ids for each in found}


def test_requests_are_drawn_checked_and_cancelled(two: Dispatcher) -> None:
    with pytest.raises(UsageError, match="one job at a time"):
        two.begin(0)
    requests = [asked(key) for key in range(12)]
    two.add(requests, {0})
    two.add([Request(50, [10**6], SamplingParams(), range(1)), asked(51, 400)])
    two.cancel(51)
    assert two.cancel(51) == []
    found = until_done(two)
    drawn = texts(found.finished)
    assert set(drawn) == {(key, sample) for key in range(12) for sample in range(2)}
    assert list(found.refused) == [50] and not found.lost
    grown: dict[int, list[int]] = {0: [], 1: []}
    for key, sample, token_ids, _ in found.grown:
        assert key == 0
        grown[sample] += token_ids
    for sample, token_ids in grown.items():  # the last are told with the end
        assert token_ids and token_ids == drawn[0, sample][: len(token_ids)]
    two.end()
    two.begin(0)
    two.add([asked(3)])
    again = texts(until_done(two).finished)
    assert again == {place: drawn[place] for place in again}  # whoever draws it, and beside what


@DEATH
def test_what_a_dead_worker_had_goes_to_the_other(two: Dispatcher) -> None:
    want_from = [asked(key, 200) for key in range(16)]
    two.add(want_from, {1, 2, 3})
    found = Happened()
    while not found.grown:
        more = two.step()
        found.grown += more.grown
        found.finished += more.finished
    os.kill(two.pids[0], signal.SIGKILL)
    until_done(two, found)
    drawn, told = texts(found.finished), {growth.key for growth in found.grown}
    assert set(drawn) | {(key, i) for key in found.lost for i in range(2)} == {
        (key, i) for key in range(16) for i in range(2)
    }
    assert set(found.lost) <= told <= {1, 2, 3}  # half of each was told already
    assert all("killed" in why for why in found.lost.values())
    assert two.num_ready == 1
    two.add([asked(key, 200) for key in (5, 6)])
    for place, token_ids in texts(until_done(two).finished).items():
        assert drawn[place][:20] == token_ids[:20]  # where sums are split depends on what stood


def test_wake_ends_the_wait(two: Dispatcher) -> None:
    for _ in range(3000):  # more than fits into a socket is one sign all the same
        two.wake()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        until_done(two)
        two.step()
    assert two.num_ready == 2
