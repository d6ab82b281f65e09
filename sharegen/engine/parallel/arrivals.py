"""A worker's side of requests that arrive while others run: which can run, and how far they are.

A step that computes prompts reads all weights for a few rows, and those that decode wait for it. So
few that come are gathered for some of their steps; what is many beside them is admitted at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharegen.engine.core.request import Completion, Request
from sharegen.engine.parallel.messages import Growth, Work
from sharegen.errors import SharegenError

if TYPE_CHECKING:
    from sharegen.engine.engine import Engine

TOGETHER_SECONDS = 0.003
"""For which the first request waits, where nothing runs, for those that come with it."""

_STEPS = 8
"""Decoding steps between two admissions, where those that wait are few beside those that run."""

_MANY = 8
"""Samples that run for one that waits, from which those that wait are few."""


def is_time(waiting: int, running: int, steps: int) -> bool:
    """Whether to admit so many samples, so many decoding steps after the last ones.

    running: samples that were admitted and have not ended, those with no token yet among them.
    """
    return steps >= _STEPS or _MANY * waiting >= running


@dataclass
class _Stream:
    """A request whose tokens are told as they come. left: samples that run or wait; told: how many
    tokens of each."""

    left: int
    told: dict[int, int] = field(default_factory=dict)


class Arrivals:
    """The requests that come to one engine, in a job that began with `arriving`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: list[Request] = []
        self._admitted = -_STEPS  # after which decoding step the last were
        self._streams: dict[int, _Stream] = {}  # by key
        self._refused: dict[int, SharegenError] = {}

    @property
    def wait(self) -> bool:
        """Whether some have come that the engine does not have yet."""
        return bool(self._waiting)

    def come(self, work: Work) -> None:
        """More requests; they are admitted together with what else comes until it is time."""
        self._waiting += work.requests
        for request in work.requests:
            if request.key in work.streams:
                self._streams[request.key] = _Stream(len(request.samples))

    def cancel(self, key: int, samples: Sequence[int]) -> None:
        """Nobody waits for a request any more."""
        self._streams.pop(key, None)
        self._waiting = [request for request in self._waiting if request.key != key]
        self._engine.cancel(key, samples)

    def admit(self) -> None:
        """Before each step: give the engine what has come, except what can never run."""
        if not self._waiting:
            return
        waiting = sum(len(request.samples) for request in self._waiting)
        now = self._engine.stats.decode_steps
        if not is_time(waiting, self._engine.num_unfinished, now - self._admitted):
            return
        self._admitted = now
        requests, self._waiting = self._waiting, []
        good = []
        for request, error in zip(requests, self._engine.errors(requests), strict=True):
            if error is None:
                good.append(request)
            else:
                self._refused[request.key] = error
                self._streams.pop(request.key, None)
        if good:
            self._engine.add(good)

    def refused(self) -> dict[int, SharegenError]:
        """Why requests cannot run, since the last call."""
        found, self._refused = self._refused, {}
        return found

    def growth(self, finished: Sequence[Completion]) -> list[Growth]:
        """What streams have drawn since the last call; what has ended is told as a whole."""
        for each in finished:
            stream = self._streams.get(each.request.key)
            if stream is not None:
                stream.left -= 1
                if not stream.left:
                    del self._streams[each.request.key]
        return [
            growth
            for key, stream in self._streams.items()
            for growth in self._growth_of(key, stream.told)
        ]

    def _growth_of(self, key: int, told: dict[int, int]) -> list[Growth]:
        found = []
        for each in self._engine.so_far(key):
            before = told.get(each.sample, 0)
            if len(each.token_ids) > before:
                logprobs = [] if each.logprobs is None else each.logprobs[before:]
                found.append(Growth(key, each.sample, each.token_ids[before:], logprobs))
                told[each.sample] = len(each.token_ids)
        return found
