"""What the host does for a whole job: parts are timed without those inside, and rows end."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.host_work import PartClock, SimulatedJob, StandIn, bench_host_work
from sharegen.engine.core.batch import DecodeBatch


def test_a_part_does_not_count_those_inside_it() -> None:
    clock = PartClock()

    def busy() -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass

    clock.timed("outer", clock.timed("inner", busy))()
    assert clock.seconds["inner"] >= 0.02
    assert clock.seconds["outer"] < clock.seconds["inner"]


def test_every_row_draws_a_text_until_its_end() -> None:
    stand_in = StandIn(np.arange(100), end=777, mean=5)
    nothing = np.empty((0, 2), dtype=np.int32)
    draws = []
    for step in range(60):
        started = np.arange(3 if step == 0 else 0, dtype=np.int32)
        batch = DecodeBatch.__new__(DecodeBatch)
        for name, value in {"num_rows": 3, "moves": nothing, "started": started}.items():
            object.__setattr__(batch, name, value)
        drawn = stand_in.run(batch)
        draws.append(list(zip(drawn.get()[0], drawn.get_ended(), strict=True)))
    for row in zip(*draws, strict=True):
        first = next(i for i, (_, ended) in enumerate(row) if ended)
        text = [token for token, _ in row[:first]]
        assert row[first][0] == 777
        assert all((b - a) % 100 == 1 for a, b in pairwise(text))


@pytest.mark.slow
def test_a_whole_job_is_timed_by_part() -> None:
    found = bench_host_work(SimulatedJob(2, 8, rows=4, tokens=6, stop="Question:"))
    assert found["samples"] == 16
    for name in ("schedule_ms", "collect_ms", "record_us", "append_us", "text_us", "step_ms"):
        assert found[name] > 0
