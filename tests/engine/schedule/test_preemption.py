"""Who makes room when the blocks run out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sharegen.engine.schedule.sequence import Sequence
from tests.engine.jobs import hope_for_the_best, requests_of, run
from tests.engine.schedule.test_scheduler import PARAMS, spelling_engine


def test_the_youngest_are_preempted_and_come_back_first(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = requests_of([[10 + i] * 4 for i in range(8)], replace(PARAMS, max_tokens=16))
    engine = spelling_engine(requests, blocks=16)
    scheduler = engine.scheduler
    preempt, admit = scheduler.preemption.preempt, scheduler.rows.admit

    def watched_preempt(sequence: Sequence) -> None:
        assert sequence.joined == max(s.joined for s in scheduler.rows.running())
        preempt(sequence)

    def watched_admit(sequence: Sequence, block: int, states: tuple[int, int]) -> None:
        behind = [s.group.request.key for s in scheduler.ready]
        behind += [group.request.key for group in scheduler.prefill.waiting]
        assert all(sequence.group.request.key < key for key in behind)
        admit(sequence, block, states)

    hope_for_the_best(engine)
    monkeypatch.setattr(scheduler.preemption, "preempt", watched_preempt)
    monkeypatch.setattr(scheduler.rows, "admit", watched_admit)
    run(engine, requests)
    assert engine.stats.preemptions > 0
