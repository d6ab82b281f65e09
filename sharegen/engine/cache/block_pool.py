"""The block pool: who owns which fixed-size blocks of the KV cache.

Numbers only; the tensors live in the runner. Shared nodes take contiguous runs from the low end
(first fit), so that attention reads them without a table look-up; sequences take single blocks
from the high end, so that the two do not fragment each other. A block that a sequence and a
fork's node share is counted once per owner and freed with the last.

Where the KV that one sample alone reads is kept in FP8, a block is an *FP8 block*, and
`blocks_per_full` neighbours of them take the memory of one *full-precision block* ("full block").
One pool holds both: free full blocks and free blocks are counted separately, and a sequence takes
what is left of a broken full block before it breaks another.

So it is where that KV is kept as latents: `blocks_per_full` is larger then.

A block has `block_size` places, one for each token in FP8. Places that nobody is going
to fill are noted with their block, and forgotten when it is free.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_LOOKED_AT = 1024  # blocks or full blocks, at first, for a run of free ones

Blocks = npt.NDArray[np.int32]


class BlocksNeeded(NamedTuple):
    """What someone asks for: full-precision blocks, and single blocks beside them."""

    full_blocks: int
    blocks: int


class BlockPool:
    """Says which blocks of the KV cache are free, and how many owners each of the others has.

    Blocks are numbered from 0; full block i is made of the blocks from i * blocks_per_full on.

    Args:
        num_blocks: a multiple of `blocks_per_full`.
        block_size: tokens of a block.
        blocks_per_full: how many blocks take the memory of one full-precision block.
        readers: the most samples whose prompt, where nobody else reads it, lies in single blocks.

    Attributes:
        num_free: blocks that nobody owns.
        num_free_full_blocks: full blocks of which nobody owns any block.
        peak_used: the most blocks that were in use at a time.
        wasted: places in blocks in use that nobody is going to fill.
    """

    def __init__(
        self, num_blocks: int, block_size: int, blocks_per_full: int = 1, readers: int = 1
    ) -> None:
        assert num_blocks > 0 and block_size > 0 and num_blocks % blocks_per_full == 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.blocks_per_full = blocks_per_full
        self.readers = readers
        self.num_free = num_blocks
        self.num_free_full_blocks = num_blocks // blocks_per_full
        self.peak_used = 0
        self.wasted = 0
        self._wasted = np.zeros(num_blocks, dtype=np.int32)  # of these, by block
        self._owners = np.zeros(num_blocks, dtype=np.int32)
        self._used = np.zeros(
            num_blocks // blocks_per_full, dtype=np.int32
        )  # blocks in use, by full block
        self._free_full_blocks = _Highest(range(len(self._used)), len(self._used))  # whole ones
        self._singles = _Highest((), num_blocks)  # what is left of broken ones

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    @property
    def stranded(self) -> int:
        """Places that are free and that no full block can have, for want of the block beside it."""
        return (self.num_free - self.num_free_full_blocks * self.blocks_per_full) * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks of one kind hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def has(self, room: BlocksNeeded) -> bool:
        """Return whether as many blocks are free."""
        return self._suffices(self.num_free_full_blocks, self.num_free, room)

    def would_have(self, room: BlocksNeeded, owned: Iterable[Iterable[int]]) -> bool:
        """Return whether as many blocks would be free if some owners gave up theirs.

        owned: for each of these owners the blocks that it holds.
        """
        held = Counter(int(block) for blocks in owned for block in blocks)
        blocks = np.array([b for b, n in held.items() if self._owners[b] == n], dtype=np.int64)
        used = self._used - np.bincount(blocks // self.blocks_per_full, minlength=len(self._used))
        full_blocks = int((used == 0).sum())
        return self._suffices(full_blocks, self.num_free + len(blocks), room)

    def would_have_full_blocks(self, room: BlocksNeeded, more: int) -> bool:
        """Return whether as many blocks would be free if `more` full blocks became free."""
        full_blocks, blocks = (
            self.num_free_full_blocks + more,
            self.num_free + more * self.blocks_per_full,
        )
        return self._suffices(full_blocks, blocks, room)

    def _suffices(self, full_blocks: int, blocks: int, room: BlocksNeeded) -> bool:
        return (
            full_blocks >= room.full_blocks
            and blocks >= room.full_blocks * self.blocks_per_full + room.blocks
        )

    def allocate(self) -> int | None:
        """Take one block, and return it; None when all are taken.

        It comes from the high end, and from a full block that is broken already where there is one.
        """
        block = self._singles.pop()
        while block is not None and not self._is_single(block):
            block = self._singles.pop()
        if block is None:
            full_block = self._free_full_blocks.pop()
            while full_block is not None and self._used[full_block]:
                full_block = self._free_full_blocks.pop()
            if full_block is None:
                return None
            self.num_free_full_blocks -= 1
            first = full_block * self.blocks_per_full
            block = first + self.blocks_per_full - 1
            for rest in range(first, block):
                self._singles.add(rest)
        self._owners[block] = 1
        self._used[block // self.blocks_per_full] += 1
        self.num_free -= 1
        self.peak_used = max(self.peak_used, self.num_used)
        return block

    def allocate_node(self, count: int) -> tuple[Blocks, bool] | None:
        """Take `count` blocks for a node: the first run from the low end that is long enough.

        Where no run is long enough they are scattered, from the low end, those of broken full
        blocks first.

        Returns:
            [count] the blocks, and whether they are one ascending run; None when fewer than `count`
            are free.
        """
        if count > self.num_free:
            return None
        free = self._owners == 0
        start = _first_run(free, count)
        if start is not None:
            blocks = np.arange(start, start + count, dtype=np.int32)
        else:
            whole = np.repeat(self._used == 0, self.blocks_per_full)
            blocks = np.concatenate([np.flatnonzero(free & ~whole), np.flatnonzero(whole)])
            blocks = np.sort(blocks[:count]).astype(np.int32)
        self._take(blocks)
        return blocks, start is not None

    def allocate_full_blocks(self, count: int) -> tuple[Blocks, bool] | None:
        """Take `count` full-precision blocks for a node, as `allocate_node` takes blocks.

        Returns:
            [count * blocks_per_full] the blocks, and whether they are one ascending run; None when
            fewer than `count` full blocks are free.
        """
        if count > self.num_free_full_blocks:
            return None
        free = self._used == 0
        start = _first_run(free, count)
        full_blocks = (
            np.flatnonzero(free)[:count] if start is None else np.arange(start, start + count)
        )
        blocks = (
            (full_blocks[:, None] * self.blocks_per_full + np.arange(self.blocks_per_full))
            .astype(np.int32)
            .ravel()
        )
        self._take(blocks)
        return blocks, start is not None

    def share(self, block: int) -> None:
        """Give a block in use one more owner."""
        assert self._owners[block] > 0, "only a block in use can be shared"
        self._owners[block] += 1

    def waste(self, block: int, places: int) -> None:
        """Note that places of a block in use, or of the full block that it ends, stay empty.

        It may be said once of a block, until the block is free.
        """
        assert self._owners[block] > 0 and self._wasted[block] == 0
        self._wasted[block] = places
        self.wasted += places

    def free(self, blocks: Seq[int] | Blocks) -> None:
        """Give up one ownership of each block, all different; one without owners is free again."""
        for block in np.asarray(blocks).tolist():  # a few: many small arrays would cost more
            owners = int(self._owners[block]) - 1
            assert owners >= 0, f"block {block} is freed twice"
            self._owners[block] = owners
            if owners:
                continue
            self.num_free += 1
            if wasted := int(self._wasted[block]):
                self.wasted -= wasted
                self._wasted[block] = 0
            full_block = block // self.blocks_per_full
            used = int(self._used[full_block]) - 1
            self._used[full_block] = used
            if used:
                self._singles.add(block)
            else:
                self.num_free_full_blocks += 1
                self._free_full_blocks.add(full_block)

    def check_integrity(self, owned: Iterable[Iterable[int]]) -> None:
        """Assert that the books agree with what the owners say they hold.

        owned: for every owner (node or sequence) the blocks that it holds.
        """
        held = Counter(int(block) for blocks in owned for block in blocks)
        counted = {int(b): int(self._owners[b]) for b in np.flatnonzero(self._owners)}
        assert counted == dict(held), f"owners differ: {set(counted.items()) ^ set(held.items())}"
        free = self._owners == 0
        used = (~free).reshape(-1, self.blocks_per_full).sum(1)
        assert self.num_free == int(free.sum()), "free count is off"
        assert self.wasted == int(self._wasted.sum()), "wasted places are off"
        assert not self._wasted[free].any(), "a free block wastes nothing"
        assert self._used.tolist() == used.tolist(), "blocks in use are off"
        assert self.num_free_full_blocks == int((used == 0).sum()), "free full blocks are off"
        whole = np.repeat(used == 0, self.blocks_per_full)
        self._free_full_blocks.check(np.flatnonzero(used == 0))
        self._singles.check(np.flatnonzero(free & ~whole))

    def _take(self, blocks: Blocks) -> None:
        """Give free blocks, all different, their first owner; list what is left of full blocks."""
        full_blocks = np.sort(blocks // self.blocks_per_full)
        first = np.diff(full_blocks, prepend=-1) > 0  # np.unique imports numpy.ma: 60 ms
        full_blocks = full_blocks[first]
        broken = full_blocks[self._used[full_blocks] == 0]
        self._owners[blocks] = 1
        np.add.at(self._used, blocks // self.blocks_per_full, 1)
        self.num_free -= len(blocks)
        self.num_free_full_blocks -= len(broken)
        self.peak_used = max(self.peak_used, self.num_used)
        if self.blocks_per_full > 1:
            rest = (
                broken[:, None] * self.blocks_per_full + np.arange(self.blocks_per_full)
            ).ravel()
            for block in rest[self._owners[rest] == 0].tolist():
                self._singles.add(block)

    def _is_single(self, block: int) -> bool:
        return bool(self._owners[block] == 0 and self._used[block // self.blocks_per_full])


class _Highest:
    """A heap of numbers, of which the highest is taken first.

    One that its owner has taken another way stays until it is popped and found taken: removing it
    would cost a search. Flags keep it from standing here twice.
    """

    def __init__(self, items: Iterable[int], size: int) -> None:
        self.heap = sorted(-item for item in items)
        self._is_here = np.zeros(size, dtype=np.bool_)
        self._is_here[[-item for item in self.heap]] = True

    def add(self, item: int) -> None:
        if not self._is_here[item]:
            self._is_here[item] = True
            heapq.heappush(self.heap, -item)

    def pop(self) -> int | None:
        if not self.heap:
            return None
        item = -heapq.heappop(self.heap)
        self._is_here[item] = False
        return item

    def check(self, free: npt.NDArray[np.integer]) -> None:
        """Assert that what is free is here, and nothing twice."""
        assert len(self.heap) == len(set(self.heap)), "a block stands in the free list twice"
        missing = set(free.tolist()) - {-item for item in self.heap}
        assert not missing, f"free blocks are lost: {missing}"


def _first_run(free: np.ndarray, count: int) -> int | None:
    """Return where the first run of at least `count` True values begins, or None."""
    end = count + _LOOKED_AT
    while True:  # most are found at the low end: a look at all would cost more than the rest
        inside = np.concatenate([[False], free[:end], [False]])
        edges = np.flatnonzero(inside[1:] != inside[:-1])
        starts, ends = edges[::2], edges[1::2]
        long_enough = np.flatnonzero(ends - starts >= count)
        if len(long_enough):
            return int(starts[long_enough[0]])
        if end >= len(free):
            return None
        end *= 4
