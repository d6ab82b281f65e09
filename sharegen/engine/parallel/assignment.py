"""The requests of one job on their way to workers and back: who has which, and who gets more.

A worker holds what it decodes and some more, so that it never waits for the driver; how much more
shrinks with what is left, so that nobody sits on work while another has none. Names and numbers
alone: no process is known here, and no time passes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.request import Completion, Request
from sharegen.engine.parallel.deal import Dealer
from sharegen.engine.parallel.messages import CompletionMessage

W = TypeVar("W", bound=Hashable)

_PREFILL = 0.05  # of a drawn token's work is that of a prompt token
_OPEN = 4096  # drawn tokens that a sample without max_tokens is taken for
_LARGE = 4  # times the mean: work that is dealt first, wherever it is in the tree


@dataclass
class _Item:
    """A request, or some samples of one, as it is dealt; left: of its samples, a bit each."""

    request: Request
    left: int

    @property
    def weight(self) -> int:
        """Samples that are left and required; 1 where others are alone, 0 where nothing is left."""
        required = self.request.required
        wanted = self.left if required is None else self.left & ((1 << required) - 1)
        return max(wanted.bit_count(), bool(self.left))

    def has(self, sample: int) -> bool:
        return bool(self.left >> sample & 1)


class Assignment(Generic[W]):
    """Deals the samples of requests to workers that come and go; each is finished once.

    block_size: of the workers' KV caches, below which nothing is shared.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._dealer = Dealer()
        self._slots: dict[W, int] = {}
        self._held: dict[W, int] = {}  # weight dealt and not finished
        self._busy: set[W] = set()
        self._changed: dict[W, None] = {}  # who may have room since all were looked at
        self._undealt = 0  # weight
        self._unfinished = 0
        self._read_below = 0.0  # undealt work with which more requests are wanted
        self._items: dict[int, _Item] = {}
        self._by_key: dict[int, list[int]] = {}
        self._cancelled: dict[int, Request] = {}  # requests, or some samples of them, by key

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
        """More requests, whose sharing is looked for together; workers: that are there or started.

        The samples of a request stay together unless there are fewer requests than workers: then
        each is dealt in as many parts as there are workers, which makes their shares even. The
        beams of a search are always one worker's. What
        takes far longer than others is dealt first, so that nobody ends with it alone.
        """
        tree = PrefixTree(self._block_size)
        told = [request.splits for request in requests if request.splits is not None]
        prompts = [request.prompt_token_ids for request in requests]
        readers = [request.readers for request in requests]
        alone = [count > 0 for count in readers]
        leaves = tree.insert(prompts, splits=told or None, alone=alone)
        place = {node: i for i, node in enumerate(tree.nodes())}
        wanted = [i for i, request in enumerate(requests) if request.samples]
        wanted.sort(key=lambda i: place[leaves[i]])
        parts = workers if len(self._items) + len(wanted) < workers else 1
        items: list[tuple[_Item, float]] = []
        for i in wanted:
            leaf = leaves[i]
            alone_by = readers[i] if leaf.alone else 0
            request = replace(requests[i], splits=leaf.splits(), alone=alone_by)
            own = 1 if request.beam else min(parts, len(request.samples))
            for part in range(own):
                samples = request.samples[part::own]
                most = request.params.max_tokens or _OPEN
                work = leaf.length * _PREFILL + len(samples) * most
                items.append((_Item(request, _bits(samples)), work))
        total = sum(work for _, work in items)
        large = _LARGE * total / max(len(items), 1)
        first = [pair for pair in items if pair[1] > large]
        self._put_in(sorted(first, key=lambda pair: -pair[1]))
        self._put_in([pair for pair in items if pair[1] <= large])
        self._read_below = total / 2
        self._changed = dict.fromkeys(self._slots)

    def _put_in(self, items: Sequence[tuple[_Item, float]]) -> None:
        """Put in items with their work, to be dealt after those that are in already."""
        numbers = self._dealer.extend([work for _, work in items])
        for number, (item, _) in zip(numbers, items, strict=True):
            self._items[number] = item
            self._by_key.setdefault(item.request.key, []).append(number)
            self._undealt += item.weight
            self._unfinished += item.weight

    # -- dealing ------------------------------------------------------------------------------

    def deal(self, workers: int) -> Iterator[tuple[W, list[Request]]]:
        """Who gets more to do, and what; workers: that are there or started."""
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
        """Deal items until the worker has what it decodes and some ahead, or its share of all.

        Who is not there yet may never come: what can be decoded at once is not kept for it.
        """
        while self._undealt > 0:
            slots, share = self._slots[worker], math.ceil(self._unfinished / len(self._slots))
            fair = math.ceil(self._unfinished / workers)
            most = max(min(slots, share), min(slots + self._ahead(worker, workers), fair))
            room = most - self._held[worker]
            if room < 1:
                break
            dealt = self._dealer.deal(worker, room * self._dealer.undealt / self._undealt)
            assert dealt, "samples are left to deal, and no item has them"
            for number in dealt:
                weight = self._items[number].weight
                if not weight:  # cancelled before anyone had it
                    self._drop(worker, number)
                    continue
                self._held[worker] += weight
                self._busy.add(worker)
                self._undealt -= weight
                yield number

    def _ahead(self, worker: W, workers: int) -> float:
        """Samples that a worker holds beside those that it decodes."""
        return min(self._slots[worker], self._undealt / (2 * workers))

    def _left_of(self, numbers: Sequence[int]) -> list[Request]:
        """What is left of items; those of one request as one again."""
        requests: dict[int, tuple[Request, list[int]]] = {}
        for number in numbers:
            item = self._items[number]
            requests.setdefault(item.request.key, (item.request, []))[1].extend(_samples(item.left))
        return [
            request
            if len(samples) == len(request.samples)
            else replace(request, samples=sorted(samples))
            for request, samples in requests.values()
        ]

    def finish(self, worker: W, drawn: CompletionMessage) -> Completion:
        """A worker has finished a sample: it, with the request as it was put to the job."""
        numbers = self._by_key.get(drawn.key, ())
        number = next((n for n in numbers if self._items[n].has(drawn.sample)), None)
        if number is None:  # the worker had finished it before it heard that nobody wants it
            return drawn.completion(self._cancelled[drawn.key])
        item = self._items[number]
        before = item.weight
        item.left ^= 1 << drawn.sample
        self._weigh(worker, number, before)
        return drawn.completion(item.request)

    # -- what is dealt changes ----------------------------------------------------------------

    def cancel(
        self, key: int, samples: Collection[int] | None
    ) -> list[tuple[W | None, Sequence[int]]]:
        """Samples of a request are wanted no more, all by default; who had which of them."""
        gone: list[tuple[W | None, Sequence[int]]] = []
        for number in list(self._by_key.get(key, ())):
            item, worker = self._items[number], self._holder(number)
            mine = [i for i in _samples(item.left) if samples is None or i in samples]
            if not mine:
                continue
            before = item.weight
            item.left ^= _bits(mine)
            self._cancelled[key] = item.request
            self._weigh(worker, number, before)
            gone.append((worker, mine))
        return gone

    def call(self, key: int, required: int) -> set[W]:
        """More samples of a request are required; returns who has some of it."""
        holders: set[W] = set()
        for number in list(self._by_key.get(key, ())):
            item, worker = self._items[number], self._holder(number)
            if item.request.required is None or item.request.required >= required:
                continue
            before = item.weight
            item.request = replace(item.request, required=required)
            self._weigh(worker, number, before)
            if worker is not None:
                holders.add(worker)
        return holders

    def _holder(self, number: int) -> W | None:
        return next((w for w in self._slots if self._dealer.has(w, number)), None)

    def _weigh(self, worker: W | None, number: int, before: int) -> None:
        """An item weighs something else than before; worker: who has it, if it has been dealt."""
        change = self._items[number].weight - before
        self._unfinished += change
        if worker is None:
            self._undealt += change
            return
        self._held[worker] += change
        if not self._held[worker]:
            self._busy.discard(worker)
        self._changed[worker] = None
        if not self._items[number].left:
            self._drop(worker, number)

    def _drop(self, worker: W, number: int) -> None:
        """Forget an item of a worker, of which nothing is left."""
        self._dealer.finish(worker, number)
        key = self._items.pop(number).request.key
        self._by_key[key].remove(number)
        if not self._by_key[key]:
            del self._by_key[key]


def _bits(samples: Sequence[int]) -> int:
    """Sample indices, each of them a bit."""
    marks = np.zeros(max(samples) + 1, bool)
    marks[np.asarray(samples)] = True
    return int.from_bytes(np.packbits(marks, bitorder="little").tobytes(), "little")


def _samples(bits: int) -> list[int]:
    """Return the indices again, in order."""
    data = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
    marks = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    return np.flatnonzero(marks).tolist()
