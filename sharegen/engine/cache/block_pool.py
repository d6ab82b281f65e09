"""The block pool: who owns which fixed-size blocks of the KV cache.

Numbers only; the tensors live in the runner. Shared nodes take contiguous runs from the low end
(first fit), so that attention reads them without a table look-up; sequences take single blocks
from the high end, so that the two do not fragment each other. A block that a sequence and a
fork's node share is counted once per owner and freed with the last.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, numbered from 0."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        assert num_blocks > 0 and block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        self.peak_used = 0
        self._owners = np.zeros(num_blocks, dtype=np.int32)
        # Free blocks, highest first, as a heap of negated ids. A block taken from the low end by
        # a run stays in the heap until it is popped and found taken: removing it would cost a
        # search. `_in_heap` keeps a block from standing there twice.
        self._heap = [-block for block in range(num_blocks - 1, -1, -1)]
        self._in_heap = np.ones(num_blocks, dtype=np.bool_)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self) -> int | None:
        """One block from the high end, or None when the pool is exhausted."""
        while self._heap:
            block = -heapq.heappop(self._heap)
            self._in_heap[block] = False
            if self._owners[block] == 0:
                self._take(block, block + 1)
                return block
        return None

    def allocate_node(self, count: int) -> tuple[list[int], bool] | None:
        """`count` blocks for a shared node and whether they are one ascending run.

        First fit from the low end; scattered from the low end where no run is long enough; None
        when fewer than `count` blocks are free.
        """
        if count > self.num_free:
            return None
        free = self._owners == 0
        start = _first_run(free, count)
        if start is not None:
            self._take(start, start + count)
            return list(range(start, start + count)), True
        blocks = np.flatnonzero(free)[:count].tolist()
        for block in blocks:
            self._take(block, block + 1)
        return blocks, False

    def share(self, block: int) -> None:
        """One more owner for a block in use."""
        assert self._owners[block] > 0, "only a block in use can be shared"
        self._owners[block] += 1

    def free(self, blocks: Seq[int] | npt.NDArray[np.int32]) -> None:
        """Give up one ownership of each block, all different; one without owners is free again."""
        given = np.asarray(blocks, dtype=np.int32)
        assert (self._owners[given] > 0).all(), f"of the blocks {given} one is freed twice"
        self._owners[given] -= 1
        free = given[self._owners[given] == 0]
        self.num_free += len(free)
        for block in free[~self._in_heap[free]].tolist():
            heapq.heappush(self._heap, -block)
        self._in_heap[free] = True

    def freed_by(self, owned: Iterable[Iterable[int]]) -> int:
        """How many blocks would be free if some owners gave up what they hold.

        owned: for each of these owners the blocks that it holds.
        """
        held = Counter(int(block) for blocks in owned for block in blocks)
        return sum(int(self._owners[block]) == count for block, count in held.items())

    def check_integrity(self, owned: Iterable[Iterable[int]]) -> None:
        """Assert that the books agree with what the owners say they hold.

        owned: for every owner (node or sequence) the blocks that it holds.
        """
        held = Counter(int(block) for blocks in owned for block in blocks)
        counted = {int(b): int(self._owners[b]) for b in np.flatnonzero(self._owners)}
        assert counted == dict(held), f"owners differ: {set(counted.items()) ^ set(held.items())}"
        assert self.num_free == int((self._owners == 0).sum()), "free count is off"
        heap = [-block for block in self._heap]
        assert len(heap) == len(set(heap)), "a block stands in the free list twice"
        missing = set(np.flatnonzero(self._owners == 0).tolist()) - set(heap)
        assert not missing, f"free blocks are lost: {missing}"

    def _take(self, start: int, end: int) -> None:
        self._owners[start:end] = 1
        self.num_free -= end - start
        self.peak_used = max(self.peak_used, self.num_used)


def _first_run(free: np.ndarray, count: int) -> int | None:
    """Start of the first run of at least `count` True values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], free, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    long_enough = np.flatnonzero(ends - starts >= count)
    return int(starts[long_enough[0]]) if len(long_enough) else None
