"""Which of several engines an arriving request goes to: where its prompt is known, if that leaves
nobody idle.

Nobody knows what comes next, so a request is sent at once and is never taken back. What a worker's
cache holds is not asked either: whoever was sent a prompt has it, until so many others were sent
that its cache is full. Names and numbers alone: no process is known here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from sharegen.engine.core.request import Completion, Request
from sharegen.engine.parallel.messages import CompletionMessage

W = TypeVar("W", bound=Hashable)

SLACK = 32
"""Samples that a worker which knows a prompt may have more than the one with the fewest."""

FEW = 8
"""The same where that one has none."""

_DEATHS = 2  # of workers that had a request, after which nobody is given it: it may be the cause


@dataclass
class Routed(Generic[W]):
    """A request under way. worker: who has it, None where nobody is there. done: samples that have
    ended. is_told: whether a client has seen some of what runs. deaths: of workers that had it."""

    request: Request
    streams: bool
    worker: W | None = None
    done: set[int] = field(default_factory=set)
    is_told: bool = False
    deaths: int = 0

    @property
    def left(self) -> int:
        return len(self.request.samples) - len(self.done)

    @property
    def may_go_on(self) -> bool:
        """Whether another worker may have what a dead one has left.

        It draws the same tokens, up to the last bits of sums: so nobody is told half of each.
        """
        return not self.is_told and self.deaths < _DEATHS

    def rest(self) -> Request:
        """The request for the samples that are left."""
        if not self.done:
            return self.request
        samples = [sample for sample in self.request.samples if sample not in self.done]
        return replace(self.request, samples=samples)


@dataclass
class _Place:
    """A worker. load: samples that it has; known: what it was sent, the blocks of prompts by their
    names, the longest unused first; most: blocks that its cache has."""

    most: int
    load: int = 0
    known: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def length(self, names: Sequence[int]) -> int:
        """Blocks of a prompt that it knows."""
        known = (count for count, name in enumerate(names) if name not in self.known)
        return next(known, len(names))

    def learn(self, names: Sequence[int]) -> None:
        for name in names:
            self.known[name] = None
            self.known.move_to_end(name)
        while len(self.known) > self.most:
            self.known.popitem(last=False)


class Routing(Generic[W]):
    """The requests under way, and who has them. block_size: of the workers' KV caches."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._places: dict[W, _Place] = {}
        self._routed: dict[int, Routed[W]] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._routed

    def __len__(self) -> int:
        return len(self._routed)

    def join(self, worker: W, blocks: int) -> list[Routed[W]]:
        """A worker is there, whose cache has so many blocks; what waited for one is returned."""
        self._places[worker] = _Place(max(1, blocks))
        return [each for each in self._routed.values() if each.worker is None]

    def leave(self, worker: W) -> list[Routed[W]]:
        """A worker is gone: what it has not finished is nobody's, and returned."""
        self._places.pop(worker, None)
        left = [each for each in self._routed.values() if each.worker == worker]
        for each in left:
            each.worker = None
            each.deaths += 1
        return left

    def add(self, request: Request, streams: bool) -> Routed[W]:
        """A request has come. streams: whether its tokens are told as they are drawn."""
        routed = self._routed[request.key] = Routed[W](request, streams)
        return routed

    def route(self, routed: Routed[W]) -> W | None:
        """Give a request to a worker; None where nobody is there."""
        if not self._places:
            return None
        worker = routed.worker = self._choose(routed.request)
        self._places[worker].load += routed.left
        return worker

    def _choose(self, request: Request) -> W:
        if len(self._places) == 1:  # whose prompt nobody has to look at
            return next(iter(self._places))
        least = min(self._places, key=lambda worker: self._places[worker].load)
        names = list(_names(request.tokens, self._block_size))
        known = {worker: place.length(names) for worker, place in self._places.items()}
        best = max(known, key=lambda worker: (known[worker], -self._places[worker].load))
        fewest = self._places[least].load
        most = fewest + (SLACK if fewest else FEW)
        knows_more = known[best] > known[least]
        chosen = best if knows_more and self._places[best].load < most else least
        self._places[chosen].learn(names)
        return chosen

    def finish(self, drawn: CompletionMessage) -> Completion | None:
        """A sample has ended; None where nobody waits for it any more."""
        routed = self._routed.get(drawn.key)
        if routed is None or drawn.sample in routed.done:
            return None
        routed.done.add(drawn.sample)
        if routed.worker is not None:
            self._places[routed.worker].load -= 1
        if not routed.left:
            del self._routed[drawn.key]
        return drawn.completion(routed.request)

    def tell(self, key: int) -> bool:
        """Some of a request's running samples is told; False where nobody waits for it any more."""
        routed = self._routed.get(key)
        if routed is None:
            return False
        routed.is_told = True
        return True

    def drop(self, key: int) -> Routed[W] | None:
        """Nobody waits for a request any more, or it cannot run; None where it was none."""
        routed = self._routed.pop(key, None)
        if routed is not None and routed.worker is not None:
            self._places[routed.worker].load -= routed.left
        return routed


def _names(tokens: npt.NDArray[np.int32], block_size: int) -> Iterator[int]:
    """The names of a prompt's whole blocks, each with all that comes before it."""
    name = 0
    for end in range(block_size, len(tokens) + 1, block_size):
        name = hash((name, tokens[end - block_size : end].tobytes()))
        yield name
