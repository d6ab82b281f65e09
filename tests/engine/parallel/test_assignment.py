"""Who gets which samples: all end together, nothing is lost, few prompt tokens are copied."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sharegen.engine.core.request import Completion, Request, SamplingParams
from sharegen.engine.parallel.assignment import Assignment
from sharegen.engine.parallel.messages import CompletionMessage

BLOCK = 4


def requests_of(count: int, samples: int, max_tokens: int = 32) -> list[Request]:
    params = SamplingParams(max_tokens=max_tokens)
    stem = [7] * 20
    return [Request(i, [*stem, *[8 + i % 9] * 9, 99 + i], params, range(samples))
            for i in range(count)]  # fmt: skip


def completion(request: Request, sample: int) -> Completion:
    return Completion(request, sample, [1], None, "length", None, 0.0)


@dataclass
class Clockwork:
    """A worker that is a clock: as many samples at a time as it has slots, each takes a while."""

    slots: int
    speed: float = 1.0
    waiting: deque[tuple[Request, int]] = field(default_factory=deque)
    running: int = 0


class Simulation:
    """A job among clocks. lengths: of a request's sample, seconds at speed 1."""

    def __init__(self, workers: Sequence[Clockwork], requests: Sequence[Request], lengths: Any):
        self.workers = dict(enumerate(workers))
        self.assignment = Assignment(BLOCK)
        self.lengths = lengths
        self.events: list[tuple[float, int, int, Request, int]] = []
        self.finished: Counter[tuple[int, int]] = Counter()
        self.owners: dict[int, set[int]] = {}  # by request, who had some of it
        self.now = self.seconds = 0.0
        self.count = 0
        for name, worker in self.workers.items():
            self.assignment.join(name, worker.slots)
        self.assignment.extend(requests, len(workers))

    def run(self) -> float:
        """When the last sample is finished."""
        self.deal()
        while not self.assignment.is_done:
            self.step()
            self.deal()
        return self.now

    def step(self) -> None:
        """The next sample is finished; what dead workers would have said is not heard."""
        while self.events:
            self.now, _, name, request, sample = heapq.heappop(self.events)
            if name in self.workers:
                self.finished[request.key, sample] += 1
                self.assignment.finish(name, CompletionMessage.of(completion(request, sample)))
                self.workers[name].running -= 1
                self.start(name)
                return

    def deal(self) -> None:
        for name, requests in self.assignment.deal(len(self.workers)):
            for request in requests:
                self.owners.setdefault(request.key, set()).add(name)
                self.workers[name].waiting += [(request, sample) for sample in request.samples]
            self.start(name)

    def start(self, name: int) -> None:
        worker = self.workers[name]
        while worker.waiting and worker.running < worker.slots:
            request, sample = worker.waiting.popleft()
            length = self.lengths(request, sample)
            self.seconds += length
            self.count += 1
            heapq.heappush(
                self.events, (self.now + length / worker.speed, self.count, name, request, sample)
            )
            worker.running += 1


def uneven(seed: int) -> Any:
    """Lengths of samples: some problems are long, most samples of these reach the limit."""
    rng = random.Random(seed)
    of_problem: dict[int, float] = {}

    def length(request: Request, sample: int) -> float:
        mean = of_problem.setdefault(request.key, rng.uniform(1, 10))
        return min(12.0, rng.expovariate(1 / mean))

    return length


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 64])
@pytest.mark.turn(5)
def test_the_last_to_finish_costs_little(workers: int) -> None:
    """At most 5% above work that could be parted at will; one worker in three is slow."""
    slots, samples = 2, 3
    requests = requests_of(100 * workers, samples)
    clocks = [Clockwork(slots, speed=1.0 if name % 3 else 0.6) for name in range(workers)]
    job = Simulation(clocks, requests, uneven(workers))
    end = job.run()
    assert job.finished == Counter((r.key, i) for r in requests for i in r.samples)
    assert all(len(owners) == 1 for owners in job.owners.values())  # a problem stays together
    ideal = job.seconds / sum(slots * clock.speed for clock in clocks)
    assert end <= 1.05 * ideal


@pytest.mark.parametrize(("problems", "samples", "workers"), [(96, 32, 2), (7, 50, 7), (2, 12, 3)])
def test_a_job_that_all_could_hold_at_once_is_halved(
    problems: int, samples: int, workers: int
) -> None:
    """Nobody takes more than its share because it came first; few problems are dealt in parts."""
    requests = requests_of(problems, samples)
    job = Simulation([Clockwork(10_000) for _ in range(workers)], requests, lambda *_: 1.0)
    dealt = dict.fromkeys(range(workers), 0)
    for name, work in job.assignment.deal(workers):
        dealt[name] += sum(len(request.samples) for request in work)
        assert len({request.key for request in work}) == len(work)  # parts of one are one again
    assert set(dealt.values()) == {problems * samples // workers}


def test_a_worker_that_comes_late_finds_its_share() -> None:
    """The first takes no more ahead than its share among all who were hired."""
    assignment: Assignment[str] = Assignment(BLOCK)
    assignment.join("first", 30)
    assignment.extend(requests_of(40, 3), 2)
    [(_, first)] = assignment.deal(2)
    assignment.join("late", 30)
    [(name, late)] = assignment.deal(2)
    assert name == "late" and sum(len(request.samples) for request in late) >= 30
    assert sum(len(request.samples) for request in first) == 60


def test_a_worker_that_never_comes_keeps_nobody_waiting() -> None:
    """Eight are hired and one is there: its rows are full to the end."""
    job = Simulation([Clockwork(8)], requests_of(40, 3), lambda *_: 1.0)
    deal = job.assignment.deal
    job.assignment.deal = lambda workers: deal(8)  # type: ignore[method-assign]
    assert job.run() == 40 * 3 / 8


@pytest.mark.parametrize("place", [0, 30, 63])
def test_the_largest_is_dealt_first(place: int) -> None:
    """One problem that takes as long as forty, wherever it is in the tree."""
    requests = requests_of(64, 1, max_tokens=10)
    long = replace(requests[place].params, max_tokens=400)
    requests[place] = replace(requests[place], params=long)
    clocks = [Clockwork(1), Clockwork(1)]
    job = Simulation(clocks, requests, lambda request, _: float(request.params.max_tokens))
    assert job.run() <= 1.05 * job.seconds / 2


def test_the_last_requests_of_many_are_not_parted() -> None:
    """There are fewer than workers, but others are still to be dealt."""
    assignment: Assignment[int] = Assignment(BLOCK)
    for worker in range(4):
        assignment.join(worker, 2)
    requests = requests_of(20, 6)
    assignment.extend(requests[:18], 4)
    assignment.extend(requests[18:], 4)
    owners: dict[int, set[int]] = {}
    while not assignment.is_done:
        for worker, dealt in assignment.deal(4):
            for request in dealt:
                owners.setdefault(request.key, set()).add(worker)
                for sample in request.samples:
                    assignment.finish(worker, CompletionMessage.of(completion(request, sample)))
    assert all(len(found) == 1 for found in owners.values()) and len(owners) == 20


def test_few_are_told_little() -> None:
    """Work comes in runs of problems, not one problem whenever one is finished."""
    job = Simulation([Clockwork(8) for _ in range(2)], requests_of(400, 4), lambda *_: 1.0)
    told = 0
    deal = job.assignment.deal

    def counted(workers: int) -> Any:
        nonlocal told
        for name, work in deal(workers):
            told += 1
            yield name, work

    job.assignment.deal = counted  # type: ignore[method-assign]
    job.run()
    assert told < 1600 / 4


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.turn(5)
def test_workers_that_die_at_random_moments(seed: int) -> None:
    """500 deaths in each of 20 jobs, of workers at work, and of those hired in their place."""
    rng = random.Random(seed)
    workers = 6
    requests = requests_of(60, 4)
    job = Simulation([Clockwork(rng.randint(1, 6)) for _ in range(workers)], requests, uneven(seed))
    job.deal()
    deaths, hired = 0, workers
    while not job.assignment.is_done:
        while deaths < 500 and job.workers and rng.random() < 0.85:
            victim = rng.choice(sorted(job.workers))
            del job.workers[victim]
            job.assignment.leave(victim)
            deaths += 1
        while (len(job.workers) < workers and rng.random() < 0.8) or not job.workers:
            job.workers[hired] = Clockwork(rng.randint(1, 6))
            job.assignment.join(hired, job.workers[hired].slots)
            hired += 1
        job.deal()
        job.step()
    assert deaths == 500
    assert job.finished == Counter((r.key, i) for r in requests for i in r.samples)
    assert not job.assignment.busy


@pytest.mark.parametrize("seed", range(8))
def test_samples_are_cancelled_and_called_whoever_has_them(seed: int) -> None:
    """At random, while workers come and go: nothing is lost, and the books end empty."""
    rng = random.Random(seed)
    requests = [replace(r, required=rng.randint(0, 3)) for r in requests_of(rng.randint(1, 9), 6)]
    assignment: Assignment[int] = Assignment(BLOCK)
    held: dict[int, set[tuple[int, int]]] = {0: set(), 1: set(), 2: set()}
    for worker in held:
        assignment.join(worker, 4)
    assignment.extend(requests, len(held))
    finished: set[tuple[int, int]] = set()
    ended: set[tuple[int, int]] = set()
    late: set[tuple[int, int]] = set()
    while not assignment.is_done:
        for worker, dealt in assignment.deal(len(held)):
            held[worker] |= {(request.key, i) for request in dealt for i in request.samples}
        worker = rng.choice([w for w in held if held[w]] or [*held])
        if held[worker]:
            key, sample = rng.choice(sorted(held[worker]))
            held[worker].remove((key, sample))
            done = assignment.finish(
                worker, CompletionMessage.of(completion(requests[key], sample))
            )
            assert done.request.prompt_token_ids == requests[key].prompt_token_ids
            (late if (key, sample) in ended else finished).add((key, sample))
        if rng.random() < 0.3:
            assignment.call(rng.randrange(len(requests)), rng.randint(0, 7))
        if rng.random() < 0.2:
            key = rng.randrange(len(requests))
            for worker, gone in assignment.cancel(key, rng.choice([None, [0, 5], [1]])):
                pairs = {(key, i) for i in gone}
                assert not pairs & (ended | finished)
                ended |= pairs
                if worker is not None and rng.random() < 0.7:  # else it has finished them already
                    held[worker] -= pairs
        if rng.random() < 0.05 and len(held) > 1:
            worker = rng.choice(sorted(held))
            del held[worker]
            assignment.leave(worker)
    every = {(request.key, i) for request in requests for i in range(6)}
    assert finished | ended == every and not finished & ended and late <= ended
    assert not assignment.busy
