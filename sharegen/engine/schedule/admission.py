"""Admission: a sample starts as soon as it will probably find its blocks.

Nothing is reserved for a limit that samples hardly ever meet. What the running ones are going to
hold is forecast from the lengths of those that ended and the ages of those that run; where that
turns out too little, the youngest are preempted. Tokens never depend on it.
"""

from __future__ import annotations

import numpy as np

from sharegen.engine.cache.block_pool import BlocksNeeded
from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.state_slots import NO_SLOT
from sharegen.engine.core.lengths import Lengths
from sharegen.engine.schedule.batch_rows import BatchRows
from sharegen.engine.schedule.forecast import Forecast, most_growth
from sharegen.engine.schedule.ready import ReadyQueue
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup
from sharegen.engine.schedule.survival import Survival
from sharegen.engine.schedule.swapping import Swapping

_EVERY = 16  # forecasts between two that look at the lengths anew
_AT_ONCE = 64  # samples that are let in by one forecast, where memory has room for all of them


class Admission:
    """Admits sequences that are ready, and evicts sequences.

    Args:
        rows: the rows of the batch.
        ready: the sequences that wait for a row.
        cache: the prompts in the KV cache, whose pool has the blocks.
        swapping: the sequences whose KV is in host memory.

    Attributes:
        lengths: the lengths of samples that have ended.
        blocked: whether some wait for blocks, or slots of states, and not for rows.
    """

    def __init__(
        self, rows: BatchRows, ready: ReadyQueue, cache: PrefixCache[Sequence], swapping: Swapping
    ) -> None:
        self.rows = rows
        self.ready = ready
        self.cache = cache
        self.swapping = swapping
        self.lengths = Lengths()
        self.blocked = False
        self._survival: Survival | None = None
        self._asked = 0

    def admit(self, most: int, speculative: bool = False) -> None:
        """Admit ready sequences in up to `most` rows while blocks last.

        speculative: as in `ReadyQueue.first`.
        """
        self.blocked = False
        rows, cache = self.rows, self.cache
        outlook = Outlook(self) if self.ready else None
        while rows.num_running < most:
            sequence = self.ready.first(speculative)
            if sequence is None or not cache.is_resident(sequence.group.leaf):
                return  # its prompt was dropped: prefill comes first
            together = sequence.together
            if rows.num_running + len(together) > most:
                return
            assert outlook is not None
            outlook.add_waiting(sequence)
            need = self.swapping.blocks_to_join(sequence)
            if rows.num_running == 0:
                has_room = cache.states.has(len(together)) and cache.spare(BlocksNeeded(0, need))
                if not has_room:
                    cache.drop_all_but(sequence.group.leaf)
            elif not (cache.states.has(len(together)) and outlook.leaves(BlocksNeeded(0, 0), need)):
                self.blocked = True
                return
            self.ready.take(sequence)
            for each, blocks in zip(together, self.swapping.restore(sequence), strict=True):
                states = cache.stored[each.group.leaf].state, cache.states.take()
                rows.admit(each, blocks, states)
            outlook.held += need

    def evict(self, sequence: Sequence, keep: bool = False) -> None:
        """Take a sequence's row, and its blocks unless they are kept for forks.

        Forks have no use for them where states have gone on beyond.
        """
        pool, states = self.cache.pool, self.cache.states
        self.rows.evict(sequence)
        states.give_back(sequence.state)
        sequence.state = NO_SLOT
        # A fork, or who keeps them, may hold the blocks longer.
        left = len(sequence.blocks) * pool.block_size - sequence.fed
        pool.waste(sequence.blocks[-1], left)
        if keep and not states.are_kept:
            self.cache.keep(sequence)
        else:
            pool.free(sequence.blocks)
            sequence.blocks = []

    def survival(self) -> Survival:
        """What the lengths say; a little late, for that changes little."""
        classes = self.rows.block_tables.shape[1]
        known = self._survival
        if known is None or self._asked % _EVERY == 0 or len(known.reached) <= classes:
            size = self.cache.pool.block_size
            known = Survival(self.lengths, self.rows.ages(), size, classes)
            self._survival = known
        self._asked += 1
        return known

    def clear(self) -> None:
        """Forget everything: another job begins."""
        self.lengths.clear()
        self._survival = None
        self._asked = 0
        self.blocked = False


class Outlook:
    """What the rows, and samples that start beside them, are going to ask for.

    held: blocks that they have. Only where it is not plain that all could go to their limits, a
    forecast is made.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._rows, self._cache = admission.rows, admission.cache
        self.held, self._at_limits = self._rows.blocks_now_and_at_limits()
        self._added: dict[tuple[int, int, int], int] = {}  # which the forecast does not know yet
        self._forecast: Forecast | None = None
        self._largest = 0  # blocks that the newest of these may come to hold
        self._room = -1  # blocks by which what was forecast may grow yet, below 0 unless known

    def add_waiting(self, sequence: Sequence) -> None:
        """One that waits starts, with its beams."""
        fed = self._admission.swapping.fed(sequence)
        self.add_group(sequence.group, sequence.num_tokens, len(sequence.together), fed)

    def add_group(
        self, group: SequenceGroup, tokens: int = 1, count: int = 1, fed: int = 0
    ) -> None:
        """Samples of a group start, which have so many tokens already.

        fed: how many of these they do not feed again.
        """
        size = self._cache.pool.block_size
        kind = fed // size, (tokens - 1) // size, max(0, group.limit - 2) // size
        self._at_limits += (kind[2] + 1) * count
        self._added[kind] = self._added.get(kind, 0) + count
        self._largest = kind[2] + 1
        self._room -= count * most_growth(self._largest)

    def leaves(self, room: BlocksNeeded, first: int = 1) -> bool:
        """Whether there is so much beside what they will ask for; then it is free, and `first`
        blocks of what they ask for.

        What is idle or kept stays until they do ask.
        """
        full_blocks, blocks = room
        now = BlocksNeeded(full_blocks, max(first, blocks))
        if self._cache.can_spare(BlocksNeeded(full_blocks, blocks + self._at_limits - self.held)):
            return self._cache.spare(now)
        if self._room >= 0 and not any(room):
            return self._cache.spare(now)
        if self._forecast is None:
            self._forecast = Forecast(self._admission.survival(), self._rows.block_tables.shape[1])
            self._forecast.add_sequences(*self._rows.kinds())
        _start(self._forecast, self._added)
        self._added.clear()
        need = blocks + max(0, self._forecast.most - self.held)
        if not self._cache.can_spare(BlocksNeeded(full_blocks, need)):
            return False
        further = _AT_ONCE * most_growth(self._largest)
        if self._cache.can_spare(BlocksNeeded(full_blocks, need + further)):
            self._room = further
        return self._cache.spare(now)


def _start(forecast: Forecast, kinds: dict[tuple[int, int, int], int]) -> None:
    """Samples start: by the blocks that they fed, that their tokens fill, and their last ones."""
    if kinds:
        fed, known, last = np.array(list(kinds), dtype=np.int64).T
        count = np.fromiter(kinds.values(), np.int64, len(kinds))
        forecast.add_sequences(fed, known, last, count)
