"""Swapping: whether the KV of a preempted sample's own tokens is saved in host memory, or lost.

A preempted sample whose blocks are saved goes on where it was. One whose blocks are lost feeds its
tokens again: one a step; or many of them as rows of one step, which gives the same bits; or, where
last bits may differ, all of them in one prefill pass. Which is cheaper a cost model says: seconds
for the copies there and back against seconds of tokens that are given to the model for nothing new.
Tokens do not depend on it: what comes back are the bits that went out, and what is fed again gives
them once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.core.batch import Swaps
from sharegen.engine.schedule.sequence import Sequence
from sharegen.kernels.layout import FOLLOWING


@dataclass(frozen=True)
class SwapCost:
    """Seconds of one preemption by swapping, out and back: `fixed` and `a_block` for each block."""

    fixed: float = 0.0
    a_block: float = 0.0

    def of(self, blocks: int) -> float:
        return self.fixed + self.a_block * blocks


@dataclass(frozen=True)
class Saved:
    """Where a sample lies in host memory. slots: of each of its beams, or of itself alone."""

    slots: list[list[int]]

    @property
    def distinct(self) -> set[int]:
        """Beams have blocks in common, which are saved once."""
        return {slot for of_beam in self.slots for slot in of_beam}


class Swapping:
    """Slots of host memory, each for one block, and who has them.

    num_slots: 0 where nothing is ever saved. one_pass: tokens of a sample that may be filled in
    where they are lost, at most, by a prefill pass or as rows; 0: it feeds them all again, one a
    step. seconds_a_token: of computing
    one again, as far as it is known. swaps: samples that were saved, blocks_saved: theirs; refused:
    those that would have been, had there been slots. filling: samples that have joined with blocks
    that are still to be filled. tokens_filled: by now.
    """

    def __init__(self, pool: BlockPool, num_slots: int, cost: SwapCost, one_pass: int = 0) -> None:
        self.num_slots = num_slots
        self.one_pass = one_pass
        self.cost = cost
        self.seconds_a_token = 0.0
        self.swaps = self.blocks_saved = self.refused = self.tokens_filled = 0
        self.filling: list[Sequence] = []
        self._filled: dict[Sequence, int] = {}  # tokens, of those that are filled in parts
        self._pool = pool
        self._free = list(range(self.num_slots))[::-1]
        self._saved: dict[Sequence, Saved] = {}  # by the sample that waits
        self._out: list[tuple[int, int]] = []
        self._back: list[tuple[int, int]] = []
        self._leaving: list[Sequence] = []  # whose copies are for the next batch
        self._coming: list[Sequence] = []
        self._last: tuple[list[Sequence], list[Sequence]] = ([], [])  # of the last batch

    # -- out ----------------------------------------------------------------------------------

    def save(self, sequence: Sequence, content: Callable[[int], int]) -> None:
        """A sample, with all its beams, is about to lose its blocks: save them if that is cheaper.

        content: of a block, which one holds what is going to be in it.
        """
        if self._fills_no_more(sequence):
            return
        if not self.num_slots:
            return
        beams, size = sequence.together, self._pool.block_size
        fed = sequence.fed
        full, partial = divmod(fed, size)
        shared = {block: 0 for beam in beams for block in beam.blocks[:full]}
        count = len(shared) + len(beams) * (partial > 0)
        if not count or self.cost.of(count) >= fed * len(beams) * self.seconds_a_token:
            return
        if count > len(self._free):
            self.refused += 1
            return
        for block in shared:
            shared[block] = self._send(block)
        slots = []
        for beam in beams:
            slots.append([shared[block] for block in beam.blocks[:full]])
            if partial:  # nobody else has the block that it writes to
                slots[-1].append(self._send(content(beam.blocks[full])))
        self._saved[sequence] = Saved(slots)
        self._leaving.append(sequence)
        self.swaps += len(beams)
        self.blocks_saved += count

    def _send(self, block: int) -> int:
        slot = self._free.pop()
        self._out.append((block, slot))
        return slot

    def forget(self, sequence: Sequence) -> None:
        """A sample ends, or has to feed its tokens again."""
        self._fills_no_more(sequence)
        saved = self._saved.pop(sequence, None)
        if saved is None:
            return
        slots = saved.distinct
        self._free += sorted(slots, reverse=True)
        if sequence in self._leaving:
            self._leaving.remove(sequence)
            self._out = [pair for pair in self._out if pair[1] not in slots]

    def _fills_no_more(self, sequence: Sequence) -> bool:
        """Whether its blocks were still to be filled."""
        if sequence not in self.filling:
            return False
        self.filling.remove(sequence)
        self._filled.pop(sequence, None)
        return True

    # -- back ---------------------------------------------------------------------------------

    def is_saved(self, sequence: Sequence) -> bool:
        """Whether a sample that waits, or its beams, lie in host memory."""
        return sequence in self._saved

    def fed(self, sequence: Sequence) -> int:
        """How many of its tokens a sample that waits need not feed again, one a step."""
        if sequence in self._saved:
            return sequence.fed
        fed = min(sequence.num_tokens - 1, self.one_pass)
        return fed if fed >= self._pool.block_size and self._fills(sequence) else 0

    def _fills(self, sequence: Sequence) -> bool:
        """Whether a prefill pass gives a sample all that it had, if it had any.

        Not one whose penalties look back at its tokens, which decoding steps alone write down; and
        beams would each need a pass of their own for what they have in common.
        """
        params, group = sequence.group.request.params, sequence.group
        was_admitted = sequence.joined >= 0
        return was_admitted and group.search is None and not params.looks_back

    def blocks_to_join(self, sequence: Sequence) -> int:
        """Blocks of the pool for all that was saved, and for the next input of every beam."""
        saved = self._saved.get(sequence)
        beams = len(sequence.together)
        if saved is None:
            return beams * (self.fed(sequence) // self._pool.block_size + 1)
        starts_block = sequence.fed % self._pool.block_size == 0
        return len(saved.distinct) + beams * starts_block

    def restore(self, sequence: Sequence) -> list[list[int]]:
        """Take blocks, which must be free, for a sample that joins: of each of its beams.

        What was saved is on its way into them, and its slots are free from the next batch on; what
        was lost is going to be filled in, or nothing has been fed.
        """
        fed = self.fed(sequence)
        saved = self._saved.pop(sequence, None)
        if saved is None:
            if fed:
                self.filling.append(sequence)
            for beam in sequence.together:
                beam.fed = fed
            count = fed // self._pool.block_size + 1
            return [[self._take() for _ in range(count)] for _ in sequence.together]
        starts_block = sequence.fed % self._pool.block_size == 0
        blocks: dict[int, int] = {}  # by slot
        restored = []
        for slots in saved.slots:
            of_beam = []
            for slot in slots:
                if slot in blocks:
                    self._pool.share(blocks[slot])
                else:
                    blocks[slot] = self._take()
                    self._back.append((slot, blocks[slot]))
                of_beam.append(blocks[slot])
            restored.append([*of_beam, *([self._take()] if starts_block else [])])
        self._free += sorted(blocks, reverse=True)
        self._coming.append(sequence)
        return restored

    def _take(self) -> int:
        block = self._pool.allocate()
        assert block is not None, "a checked request does not fit the empty pool"
        return block

    def fill(self, most: int) -> list[Sequence]:
        """Samples whose blocks the next batch fills, of up to so many tokens together."""
        tokens, count = 0, 0
        while count < len(self.filling) and (not count or tokens + self.filling[count].fed <= most):
            tokens += self.filling[count].fed
            count += 1
        filled, self.filling = self.filling[:count], self.filling[count:]
        self._coming += filled
        self.tokens_filled += tokens
        return filled

    def fill_rows(self, most: int) -> list[tuple[Sequence, int, int]]:
        """(sample, start, end): outputs that the next batch fills, up to so many rows together.

        Each begins at a multiple of FOLLOWING, and has as many rows as are one.
        """
        parts = []
        left = max(1, most // FOLLOWING)
        while self.filling and left:
            sequence = self.filling[0]
            start = self._filled.pop(sequence, 0)
            end = min(sequence.fed, start + left * FOLLOWING)
            parts.append((sequence, start, end))
            left -= -(-(end - start) // FOLLOWING)
            self.tokens_filled += end - start
            if end < sequence.fed:
                self._filled[sequence] = end
            else:
                self._coming.append(self.filling.pop(0))
        return parts

    # -- the copies ---------------------------------------------------------------------------

    def next_batch(self) -> Swaps | None:
        """What is to be copied with the batch that is made now."""
        self._last = self._leaving, self._coming
        self._leaving, self._coming = [], []
        if not self._out and not self._back:
            return None
        swaps = Swaps(_pairs(self._out), _pairs(self._back))
        self._out, self._back = [], []
        return swaps

    def take_back(self) -> list[Sequence]:
        """The last batch did not run, or only in part: what was to be saved by it is lost.

        Returns those who were to come back by it, or later: they have blocks, with nothing in them.
        """
        leaving, coming = self._last
        for sequence in leaving:
            self.forget(sequence)
        coming = [*coming, *self.filling]
        self._last, self.filling, self._filled = ([], []), [], {}
        return coming

    def clear(self) -> None:
        """Drop all: nobody waits any more, whatever was interrupted half-way."""
        self._free = list(range(self.num_slots))[::-1]
        self._saved.clear()
        self._out, self._back = [], []
        self._leaving, self._coming, self.filling = [], [], []
        self._filled = {}
        self._last = ([], [])

    def check_integrity(self, waiting: Iterable[Sequence]) -> None:
        """Assert that every slot is free, or one sample's that waits."""
        assert set(self._saved) <= set(waiting), "slots of samples that do not wait"
        held = [slot for saved in self._saved.values() for slot in saved.distinct]
        assert sorted([*held, *self._free]) == list(range(self.num_slots)), "slots differ"


def _pairs(pairs: Seq[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
