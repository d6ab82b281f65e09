"""Who gets which requests: a span of the tree for each worker, and stealing from the fullest.

Requests stand in the order of the prefix tree, so that neighbours share the most. Every worker owns
ranges of that order and is dealt runs from their front; one that has nothing left takes the back
half of the largest range there is. So the tree is cut where workers meet, in few places, and a
worker that is slow, or dies, is relieved by the others without anybody's measuring it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Worker = Hashable


@dataclass
class _Share:
    """What belongs to a worker: ranges that are not dealt yet, and items dealt and not finished."""

    ranges: deque[tuple[int, int]] = field(default_factory=deque)
    given: set[int] = field(default_factory=set)


class Dealer:
    """Deals items 0, 1, ... to workers that come and go; each is finished once.

    Work is in any unit that the caller likes (expected tokens, say), at least some for every item.
    """

    def __init__(self) -> None:
        self._shares: dict[Worker, _Share] = {}
        self._unowned: deque[tuple[int, int]] = deque()  # ranges while there is no worker
        self._until: npt.NDArray[np.float64] = np.zeros(1)  # work of all items before each one
        self.undealt = 0.0  # work that no worker has been dealt
        self.unfinished = 0  # items

    # -- who is there -------------------------------------------------------------------------

    @property
    def workers(self) -> list[Worker]:
        return list(self._shares)

    def join(self, worker: Worker) -> None:
        """A worker is there; it steals its part."""
        assert worker not in self._shares
        self._shares[worker] = _Share()
        self._give_unowned()

    def leave(self, worker: Worker) -> list[int]:
        """A worker is gone: what it has not finished is dealt again. Returns what it held of it."""
        share = self._shares.pop(worker)
        held = sorted(share.given)
        self._unowned.extend(share.ranges)
        self._unowned.extend(_runs(held))
        self.undealt += sum(self._work(run) for run in _runs(held))
        self._give_unowned()
        return held

    def _give_unowned(self) -> None:
        """Ranges without an owner go to the worker that has the least."""
        while self._unowned and self._shares:
            least = min(self._shares.values(), key=self._owned)
            least.ranges.append(self._unowned.popleft())

    # -- what there is ------------------------------------------------------------------------

    def extend(self, work: Sequence[float] | npt.NDArray[np.float64]) -> range:
        """More items, in the order of the tree, each with its work; returns their numbers.

        They are cut into a range for each worker, of equal work.
        """
        first = len(self._until) - 1
        total = self._until[-1]
        self._until = np.concatenate([self._until, total + np.cumsum(work)])
        end = len(self._until) - 1
        self.undealt += float(self._until[end] - self._until[first])
        self.unfinished += end - first
        shares = list(self._shares.values())
        if not shares and end > first:
            self._unowned.append((first, end))
        if not shares or end == first:
            return range(first, end)
        targets = np.linspace(total, self._until[-1], len(shares) + 1)[1:-1]
        cuts = [first, *self._nearest(targets), end]
        for share, start, stop in zip(shares, cuts, cuts[1:], strict=False):
            if stop > start:
                share.ranges.append((start, stop))
        return range(first, end)

    def _nearest(self, targets: npt.NDArray[np.float64]) -> list[int]:
        """The borders between items that lie nearest to amounts of work."""
        after = np.searchsorted(self._until, targets)
        before = np.maximum(after - 1, 0)
        closer = targets - self._until[before] < self._until[after] - targets
        return np.where(closer, before, after).tolist()

    # -- dealing ------------------------------------------------------------------------------

    def deal(self, worker: Worker, room: float) -> range:
        """The next run of items for a worker that has room for so much work.

        At least one item, of no more work than there is room for where there are several; an empty
        range where nothing is left that is not dealt.
        """
        share = self._shares[worker]
        if not share.ranges and not self._steal(share):
            return range(0)
        start, end = share.ranges.popleft()
        stop = int(np.searchsorted(self._until, self._until[start] + room, side="right")) - 1
        stop = min(max(stop, start + 1), end)
        if stop < end:
            share.ranges.appendleft((stop, end))
        items = range(start, stop)
        share.given.update(items)
        self.undealt -= self._work((start, stop))
        return items

    def _steal(self, idle: _Share) -> bool:
        """Take the back half of the last range of the worker that owns the most."""
        fullest = max(self._shares.values(), key=self._owned)
        if not fullest.ranges:
            return False
        start, end = fullest.ranges.pop()
        half = (self._until[start] + self._until[end]) / 2
        [middle] = self._nearest(np.array([half]))
        middle = min(max(middle, start), end - 1)
        if middle > start:
            fullest.ranges.append((start, middle))
        idle.ranges.append((middle, end))
        return True

    def finish(self, worker: Worker, item: int) -> None:
        """A worker has finished an item that it was dealt."""
        self._shares[worker].given.remove(item)
        self.unfinished -= 1

    def has(self, worker: Worker, item: int) -> bool:
        """Whether a worker has been dealt an item and has not finished it."""
        return item in self._shares[worker].given

    def holds(self, worker: Worker) -> int:
        """Return the items that a worker has been dealt and has not finished."""
        return len(self._shares[worker].given)

    def _owned(self, share: _Share) -> float:
        return sum(self._work(owned) for owned in share.ranges)

    def _work(self, run: tuple[int, int]) -> float:
        return float(self._until[run[1]] - self._until[run[0]])

    def check_integrity(self, finished: set[int]) -> None:
        """Assert that every item is undealt, dealt or finished, and never two of these."""
        ranges = [r for share in self._shares.values() for r in share.ranges] + [*self._unowned]
        undealt = [item for start, end in ranges for item in range(start, end)]
        given = [item for share in self._shares.values() for item in share.given]
        everywhere = [*undealt, *given, *finished]
        assert sorted(everywhere) == list(range(len(self._until) - 1))
        assert self.unfinished == len(undealt) + len(given)
        assert abs(self.undealt - sum(self._work(r) for r in ranges)) <= 1e-6 * self._until[-1]


def _runs(items: list[int]) -> Iterator[tuple[int, int]]:
    """Turn ascending numbers into (start, end) of what is consecutive among them."""
    start = 0
    for i in range(1, len(items) + 1):
        if i == len(items) or items[i] != items[i - 1] + 1:
            yield items[start], items[i - 1] + 1
            start = i
