"""Workers that are clocks: the driver's whole world in simulated time, without engine or process.

A clock decodes up to `slots` samples together, a token of each in a step, and admits the next one
when one ends. A node stays as long as a request that needs it; it is prefilled when the first
sample below it is admitted, and all rows wait for that. Time passes from event to event.
"""

from __future__ import annotations

import heapq
import math
import pickle
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from sharegen.engine.config import EngineStats
from sharegen.engine.core.request import Request
from sharegen.engine.parallel.messages import (
    Begin,
    Check,
    Checked,
    CompletionMessage,
    Finished,
    Ready,
    Setting,
    Work,
)

Draw = Callable[[Request, int], CompletionMessage]
"""What a sample of a request will have come to."""

_WEIGHED = 64  # of so many messages one is pickled, as a pipe would


@dataclass(frozen=True)
class Speed:
    """How fast a clock works.

    steps: a second. slots: samples that it decodes together. prefill: steps that a token of a
    prompt takes. death: the second in which it dies.
    """

    steps: float
    slots: int
    prefill: float
    death: float = math.inf


@dataclass
class _Asked:
    """A request that a clock has; path: the nodes that it holds, with their lengths.

    left: its samples that have not ended; is_begun: whether one was admitted.
    """

    request: Request
    path: dict[int, int]
    left: int = 0
    is_begun: bool = False


class Clock:
    """What one worker's engine would be doing, and when."""

    def __init__(self, number: int, speed: Speed, draw: Draw, clocks: Clocks) -> None:
        self.pid = number
        self.speed = speed
        self.stats = EngineStats(slots=speed.slots)
        self._draw = draw
        self._clocks = clocks
        self._job = 0
        self._asked: dict[int, _Asked] = {}  # by the key of the request
        self._waiting: deque[tuple[_Asked, int]] = deque()  # samples without a row
        self._running: list[
            tuple[int, int, CompletionMessage]
        ] = []  # a heap, by the step of the end
        self._admitted = 0
        self._users: dict[int, int] = {}  # requests that hold a node
        self._computed: set[int] = set()  # nodes
        self._step = 0  # of decoding
        self._delay = 0.0  # seconds in which it did not decode: it prefilled, or had nothing to do

    def send(self, message: object) -> None:
        self._clocks.hear(self, message)

    def why(self) -> str:
        return "its time was up"

    def begin(self, job: int) -> None:
        self._job = job

    @property
    def ended(self) -> float:
        """The second in which its last sample ended, or the next ones do."""
        return self._step / self.speed.steps + self._delay

    def take(self, requests: Sequence[Request], now: float) -> None:
        """Work has come, in this second."""
        if self._running:
            self._step = max(self._step, math.floor((now - self._delay) * self.speed.steps))
        else:
            self._delay = now - self._step / self.speed.steps
        for request in requests:
            asked = self._asked.get(request.key)
            if asked is None:
                asked = self._asked[request.key] = self._hold(request)
            asked.left += len(request.samples)
            self._waiting.extend((asked, sample) for sample in request.samples)
        self._admit()

    def next_event(self) -> float:
        """The second in which samples end, or in which it dies."""
        if not self._running:
            return self.speed.death
        return min(self._running[0][0] / self.speed.steps + self._delay, self.speed.death)

    def advance(self) -> Finished:
        """Decode until the next sample ends, and all that end in the same step."""
        self._step = self._running[0][0]
        found = []
        while self._running and self._running[0][0] == self._step:
            drawn = heapq.heappop(self._running)[2]
            found.append(drawn)
            self.stats.generated_tokens += len(drawn.token_ids)
            self._leave(drawn.key)
        self.stats.completions += len(found)
        self._admit()
        self.stats.running, self.stats.waiting = len(self._running), len(self._waiting)
        return Finished(self._job, found, self.stats)

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.speed.slots:
            asked, sample = self._waiting.popleft()
            if not asked.is_begun:
                self._prefill(asked)
            drawn = self._draw(asked.request, sample)
            end = self._step + len(drawn.token_ids)
            heapq.heappush(self._running, (end, self._admitted, drawn))
            self._admitted += 1

    def _hold(self, request: Request) -> _Asked:
        """The nodes of its path stay as long as it does."""
        assert request.splits is not None, "the driver says where a path is split"
        tokens = np.asarray(request.prompt_token_ids, np.int32)
        ends = request.splits
        path = {hash(tokens[:end].tobytes()): end - begin for begin, end in pairwise([0, *ends])}
        for node in path:
            self._users[node] = self._users.get(node, 0) + 1
        return _Asked(request, path)

    def _prefill(self, asked: _Asked) -> None:
        """Compute the nodes of its path that are not."""
        asked.is_begun = True
        tokens = sum(length for node, length in asked.path.items() if node not in self._computed)
        self._computed.update(asked.path)
        self.stats.prompt_tokens_computed += tokens
        self._delay += tokens * self.speed.prefill / self.speed.steps

    def _leave(self, key: int) -> None:
        """A sample has ended: with the last one its request holds its nodes no longer."""
        asked = self._asked[key]
        asked.left -= 1
        if asked.left:
            return
        del self._asked[key]
        self.stats.requests_done += 1
        for node in asked.path:
            self._users[node] -= 1
            if not self._users[node]:
                del self._users[node]
                self._computed.discard(node)


class Clocks:
    """A workplace of clocks.

    speeds: of the workers that are started, in turn. now: the second of the simulation.
    seconds: of this process, spent on being clocks. messages: both ways, by kind. wire_bytes,
    wire_seconds: what pipes would carry, and what pickling would take the driver; estimated.
    """

    def __init__(self, speeds: Sequence[Speed], draw: Draw) -> None:
        self.now = 0.0
        self.messages: Counter[type] = Counter()
        self.dead: set[Clock] = set()
        self.seconds = 0.0
        self.wire_bytes = 0
        self.wire_seconds = 0.0
        self._speeds = iter(speeds)
        self._draw = draw
        self._clocks: list[Clock] = []
        self._said: deque[tuple[Clock, object]] = deque()  # what the driver is to hear now
        self._next_event: dict[Clock, float] = {}  # the event that counts of each clock that lives
        self._events: list[tuple[float, int, Clock]] = []

    def start(self, setting: Setting) -> Clock:
        clock = Clock(len(self._clocks), next(self._speeds), self._draw, self)
        self._clocks.append(clock)
        self._next_event[clock] = math.inf
        ready = Ready(
            fingerprint="a clock",
            dtype="float32",
            device="cpu",
            context_length=1 << 30,
            slots=clock.speed.slots,
            threads=1,
            resident=0,
            stats=clock.stats,
        )
        self._said.append((clock, ready))
        self._schedule(clock)
        return clock

    def hear(self, clock: Clock, message: object) -> None:
        """The driver says something to a clock."""
        self._weigh(message, is_heard=False)
        started = time.thread_time()
        match message:
            case Check(requests):
                self._said.append((clock, Checked([None] * len(requests))))
            case Begin(job):
                clock.begin(job)
            case Work(requests):
                clock.take(requests, self.now)
                self._schedule(clock)
        self.seconds += time.thread_time() - started

    def listen(self) -> Iterator[tuple[Clock, object]]:
        """What is said now, or else in the next event."""
        started = time.thread_time()
        if not self._said:
            self._said.append(self._next())
        self.seconds += time.thread_time() - started
        while self._said:
            clock, message = self._said.popleft()
            if clock in self._next_event:
                self._weigh(message, is_heard=True)
                yield clock, message

    def end(self, clock: Clock) -> None:
        self._next_event.pop(clock, None)

    def close(self) -> None:
        """Clocks leave nothing behind."""

    def ends(self) -> list[float]:
        """Return, for each clock that did not die, the second in which its last sample ended."""
        return [clock.ended for clock in self._clocks if clock not in self.dead]

    def _next(self) -> tuple[Clock, object]:
        while True:
            second, _, clock = heapq.heappop(self._events)
            if self._next_event.get(clock) != second:
                continue  # it was ended, or prefilled meanwhile
            self.now = second
            if second >= clock.speed.death:
                self.dead.add(clock)
                return clock, None
            message = clock.advance()
            self._schedule(clock)
            return clock, message

    def _schedule(self, clock: Clock) -> None:
        second = max(clock.next_event(), self.now)
        if self._next_event[clock] != second:
            self._next_event[clock] = second
            if second < math.inf:
                heapq.heappush(self._events, (second, clock.pid, clock))

    def _weigh(self, message: object, is_heard: bool) -> None:
        """Count a message; of some, what the driver would take over its pickled form."""
        kind = type(message)
        self.messages[kind] += 1
        if self.messages[kind] % _WEIGHED:
            return
        started = time.thread_time()
        data = pickle.dumps(message)
        written = time.thread_time()
        if is_heard:
            pickle.loads(data)
        read = time.thread_time()
        self.seconds += read - started
        self.wire_bytes += _WEIGHED * len(data)
        self.wire_seconds += _WEIGHED * (read - written if is_heard else written - started)
