"""The requests of one job on their way to workers and back: who has which, and who gets more.

A worker holds what it decodes and some more, so that it never waits for the driver; how much more
shrinks with what is left, so that nobody sits on work while another has none. Names and numbers
alone: no process is known here, and no time passes.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.parallel.deal import Dealer
from sharegen.engine.parallel.messages import Drawn
from sharegen.engine.request import Completion, Request

W = TypeVar("W", bound=Hashable)

_PREFILL = 0.05  # of a drawn token's work is that of a prompt token


@dataclass
class _Item:
    """A request, or some samples of one, as it is dealt; left: of these, once they are dealt."""

    request: Request
    samples: Sequence[int]
    left: set[int] = field(default_factory=set)

    def deal(self) -> int:
        """It is dealt, again perhaps: how many samples these are."""
        self.left = self.left or set(self.samples)
        return len(self.left)


class Assignment(Generic[W]):
    """Deals the samples of requests to workers that come and go; each is finished once.

    block_size: of the workers' KV caches, below which nothing is shared.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._dealer = Dealer()
        self._slots: dict[W, int] = {}
        self._held: dict[W, int] = {}  # samples dealt and not finished
        self._busy: set[W] = set()
        self._changed: dict[W, None] = {}  # who may have room since all were looked at
        self._undealt = 0  # samples
        self._unfinished = 0
        self._read_below = 0.0  # undealt work with which more requests are wanted
        self._items: dict[int, _Item] = {}
        self._by_key: dict[int, list[int]] = {}

    # -- who is there -------------------------------------------------------------------------

    def join(self, worker: W, slots: int) -> None:
        """A worker is there, which decodes so many samples together."""
        self._dealer.join(worker)
        self._slots[worker] = slots
        self._held[worker] = 0
        self._changed[worker] = None

    def leave(self, worker: W) -> None:
        """A worker is gone: what it has not finished is dealt again."""
        self._dealer.leave(worker)
        del self._slots[worker]
        self._undealt += self._held.pop(worker)
        self._busy.discard(worker)
        self._changed = dict.fromkeys(self._slots)

    @property
    def busy(self) -> Set[W]:
        """Workers that have something to do."""
        return self._busy

    # -- what there is ------------------------------------------------------------------------

    @property
    def is_low(self) -> bool:
        """Whether it is time for more requests, if there are any."""
        return self._dealer.undealt <= self._read_below

    @property
    def is_done(self) -> bool:
        return not self._unfinished

    def extend(self, requests: Sequence[Request], workers: int) -> None:
        """More requests, whose sharing is looked for together; workers: that are there or hired.

        The samples of a request stay together unless there are fewer requests than workers: then
        each is dealt in as many parts as there are workers, which makes their shares even.
        """
        tree = PrefixTree(self._block_size)
        told = [request.splits for request in requests if request.splits is not None]
        prompts = [request.prompt_token_ids for request in requests]
        leaves = tree.insert(prompts, splits=told or None)
        place = {node: i for i, node in enumerate(tree.nodes())}
        wanted = [i for i, request in enumerate(requests) if request.samples]
        wanted.sort(key=lambda i: place[leaves[i]])
        parts = workers if len(wanted) < workers else 1
        items, work = [], []
        for i in wanted:
            request, leaf = replace(requests[i], splits=leaves[i].splits()), leaves[i]
            for part in range(min(parts, len(request.samples))):
                samples = request.samples[part::parts]
                items.append(_Item(request, samples))
                work.append(leaf.length * _PREFILL + len(samples) * request.params.max_tokens)
        for number, item in zip(self._dealer.extend(work), items, strict=True):
            self._items[number] = item
            self._by_key.setdefault(item.request.key, []).append(number)
            self._undealt += len(item.samples)
            self._unfinished += len(item.samples)
        self._read_below = sum(work) / 2
        self._changed = dict.fromkeys(self._slots)

    # -- dealing ------------------------------------------------------------------------------

    def deal(self, workers: int) -> Iterator[tuple[W, list[Request]]]:
        """Who gets more to do, and what; workers: that are there or hired."""
        while self._changed:  # again where one is found to be gone as it is told
            changed, self._changed = self._changed, {}
            for worker in changed:
                if worker in self._slots and self._runs_low(worker, workers):
                    numbers = list(self._deal(worker, workers))
                    if numbers:
                        yield worker, self._left_of(numbers)

    def _runs_low(self, worker: W, workers: int) -> bool:
        """Whether less than half is left of what it has been dealt beside what it decodes."""
        held = self._held[worker]
        return self._undealt > 0 and (
            held == 0 or held <= self._slots[worker] + self._ahead(worker, workers) / 2
        )

    def _deal(self, worker: W, workers: int) -> Iterator[int]:
        """Items until the worker has what it decodes and some ahead, or its share of all."""
        while self._undealt > 0:
            fair = math.ceil(self._unfinished / workers)
            most = min(self._slots[worker] + self._ahead(worker, workers), fair)
            room = most - self._held[worker]
            if room < 1:
                break
            for number in self._dealer.deal(worker, room * self._dealer.undealt / self._undealt):
                left = self._items[number].deal()
                self._held[worker] += left
                self._busy.add(worker)
                self._undealt -= left
                yield number

    def _ahead(self, worker: W, workers: int) -> float:
        """Samples that a worker holds beside those that it decodes."""
        return min(self._slots[worker], self._undealt / (2 * workers))

    def _left_of(self, numbers: Sequence[int]) -> list[Request]:
        """What is left of items; those of one request as one again."""
        requests: dict[int, tuple[Request, list[int]]] = {}
        for number in numbers:
            item = self._items[number]
            requests.setdefault(item.request.key, (item.request, []))[1].extend(item.left)
        return [
            request
            if len(samples) == len(request.samples)
            else replace(request, samples=sorted(samples))
            for request, samples in requests.values()
        ]

    def finish(self, worker: W, drawn: Drawn) -> Completion:
        """A worker has finished a sample: it, with the request as it was put to the job."""
        numbers = self._by_key[drawn.key]
        number = next(n for n in numbers if drawn.sample in self._items[n].left)
        item = self._items[number]
        item.left.remove(drawn.sample)
        self._held[worker] -= 1
        if not self._held[worker]:
            self._busy.remove(worker)
        self._unfinished -= 1
        self._changed[worker] = None
        if not item.left:
            self._dealer.finish(worker, number)
            del self._items[number]
            numbers.remove(number)
            if not numbers:
                del self._by_key[drawn.key]
        return drawn.completion(item.request)
