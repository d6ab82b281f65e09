"""Dealing: every item once, whoever comes, goes and dies; few cuts; nobody is left behind."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sharegen.engine.parallel.deal import Dealer


class Dealing(RuleBasedStateMachine):
    """Workers join and die, items come, are dealt and finished, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.dealer = Dealer()
        self.next_worker = 0
        self.held: dict[int, set[int]] = {}
        self.finished: set[int] = set()

    @rule()
    def join(self) -> None:
        self.dealer.join(self.next_worker)
        self.held[self.next_worker] = set()
        self.next_worker += 1

    @rule(work=st.lists(st.floats(0.5, 100), max_size=12))
    def extend(self, work: list[float]) -> None:
        assert len(self.dealer.extend(work)) == len(work)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), room=st.floats(0, 200))
    def deal(self, data: st.DataObject, room: float) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        dealt = self.dealer.deal(worker, room)
        assert len(dealt) or not self._undealt()
        for item in dealt:
            assert item not in self.finished
            assert all(item not in held for held in self.held.values())
        self.held[worker].update(dealt)

    def _undealt(self) -> set[int]:
        known = len(self.dealer._until) - 1
        return set(range(known)) - self.finished - set().union(*self.held.values())

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in sorted(self.held) if self.held[w]]))
        item = data.draw(st.sampled_from(sorted(self.held[worker])))
        self.dealer.finish(worker, item)
        self.held[worker].remove(item)
        self.finished.add(item)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.held)))
        assert self.dealer.leave(worker) == sorted(self.held.pop(worker))

    @invariant()
    def books_agree(self) -> None:
        self.dealer.check_integrity(self.finished)
        for worker, held in self.held.items():
            assert self.dealer.holds(worker) == len(held)


Dealing.TestCase.settings = settings(max_examples=60, deadline=None, stateful_step_count=40)
test_any_order_of_events = Dealing.TestCase


def seconds_of(work: list[float], speeds: list[float], deaths: int = 0, seed: int = 0) -> float:
    """When the last worker is done, each with a clock; some die at random and do not come back."""
    rng = random.Random(seed)
    dealer = Dealer()
    for worker in range(len(speeds)):
        dealer.join(worker)
    dealer.extend(work)
    finished: set[int] = set()
    doomed = {rng.uniform(0, sum(work) / sum(speeds) / 2): None for _ in range(deaths)}
    events: list[tuple[float, int, int]] = [(0.0, 0, worker) for worker in range(len(speeds))]
    dead_at = dict(zip(rng.sample(range(len(speeds)), deaths), sorted(doomed), strict=True))
    busy: dict[int, range] = {}
    idle: list[int] = []
    end = 0.0
    while len(finished) < len(work):
        now, _, worker = heapq.heappop(events)
        if worker in dead_at and now >= dead_at[worker]:
            dealer.leave(worker)
            busy.pop(worker, None)
            for waiting in idle:
                heapq.heappush(events, (now, 1, waiting))
            idle.clear()
            continue
        for item in busy.pop(worker, range(0)):
            dealer.finish(worker, item)
            finished.add(item)
            end = now
        dealt = dealer.deal(worker, max(1.0, dealer.undealt / (4 * len(dealer.workers))))
        if not len(dealt):
            idle.append(worker)
            continue
        busy[worker] = dealt
        took = sum(work[item] for item in dealt) / speeds[worker]
        heapq.heappush(events, (now + took, 1, worker))
    assert finished == set(range(len(work)))
    return end


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("spread", [1, 20])
def test_all_end_together(workers: int, spread: float) -> None:
    rng = random.Random(workers)
    work = [rng.uniform(1, spread) for _ in range(100 * workers)]
    speeds = [rng.uniform(0.5, 2) for _ in range(workers)]
    ideal = sum(work) / sum(speeds)
    assert seconds_of(work, speeds) < 1.05 * ideal


def test_a_death_costs_what_was_in_hand() -> None:
    work = [1.0] * 4000
    alive = seconds_of(work, [1.0] * 8)
    assert seconds_of(work, [1.0] * 8, deaths=2, seed=1) < alive * 8 / 6 * 1.15


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=200), st.integers(1, 12))
def test_neighbours_go_to_one_worker(work: list[float], workers: int) -> None:
    """With equal speeds and nobody stealing, the order is cut in as many places as workers meet."""
    dealer = Dealer()
    for worker in range(workers):
        dealer.join(worker)
    dealer.extend(work)
    owner: dict[int, int] = {}
    for worker in range(workers):
        while dealer._shares[worker].ranges:
            owner.update(dict.fromkeys(dealer.deal(worker, 1.0), worker))
    owners = [owner[item] for item in range(len(work))]
    assert sum(a != b for a, b in itertools.pairwise(owners)) <= workers - 1
    biggest = max(
        sum(w for w, o in zip(work, owners, strict=True) if o == worker) for worker in set(owners)
    )
    assert biggest <= sum(work) / workers + max(work) + 1e-9


def test_numbers_are_not_remembered_one_by_one() -> None:
    dealer = Dealer()
    dealer.join("only")
    dealer.extend([1.0] * 1_000_000)
    assert dealer.deal("only", 10.0) == range(10)
    assert dealer.undealt == 999_990
