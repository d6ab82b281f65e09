"""Preemption: who makes room when the blocks run out, or a step does not find its memory.

Single samples make room, the youngest first, not whole requests: what these have in common lies in
the nodes of the prompt, which stay, and each that goes needlessly has to come back, too. Whoever
goes keeps its tokens and waits in front of all that is new; `swapping.py` says whether its KV is
kept as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from sharegen.engine.cache.block_pool import BlocksNeeded
from sharegen.engine.schedule.admission import Admission
from sharegen.engine.schedule.sequence import Sequence


def youngest(running: Iterable[Sequence]) -> Seq[Sequence]:
    """Who makes room: the one of the running samples that joined last."""
    return [max(running, key=lambda sequence: sequence.joined)]


class Preemption:
    """Takes rows from samples that run, and gives them back to the queue.

    victims: who of the running ones make room when blocks run out, in this order. preempted: how
    many samples did; tokens_replayed: tokens whose KV was lost by it.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._rows = admission.rows
        self._ready = admission.ready
        self._cache = admission.cache
        self._swapping = admission.swapping
        self.victims: Callable[[Iterable[Sequence]], Seq[Sequence]] = youngest
        self.preempted = 0
        self.tokens_replayed = 0

    def grow(self) -> bool:
        """Give every row the block of its next input; True when someone had to be preempted."""
        pool = self._cache.pool
        preempted = False
        for sequence in self._rows.at_block_start():
            column = sequence.fed // pool.block_size
            if sequence.row < 0 or column < len(sequence.blocks):
                continue  # preempted just now, or given its block already
            block = pool.allocate()
            while block is None and sequence.row >= 0:
                preempted |= self._reclaim()
                block = pool.allocate() if sequence.row >= 0 else None
            if block is not None:
                self._rows.append_block(sequence, block)
        return preempted

    def _reclaim(self) -> bool:
        """Make room: give up what is kept, drop prompts that were prefilled ahead, else preempt.

        Returns whether it had to preempt.
        """
        if self._cache.spare(BlocksNeeded(0, 1)):
            return False
        if self._cache.drop(unless=(s.group.leaf for s in self._rows.running())):
            return False
        for sequence in self.victims(self._rows.running()):
            self.preempt(sequence)
        return True

    def preempt(self, sequence: Sequence, may_save: bool = True) -> None:
        """One makes room, with all its beams; may_save: whether its blocks hold what it fed."""
        self.preempted += len(sequence.together)
        waiting = sequence.group.alive[sequence.sample]
        if may_save:
            self._swapping.save(waiting, self._rows.content)
        if not self._swapping.is_saved(waiting):
            self.tokens_replayed += sum(each.fed for each in waiting.together)
        for each in sequence.together:
            self._admission.evict(each)
        # The youngest goes first, so that the oldest ends up at the front.
        self._ready.put_back(waiting)

    def preempt_all(self) -> None:
        """A step of the rows did not run, or only in part: all replay what they have drawn."""
        for sequence in sorted(self._rows.running(), key=lambda s: s.joined, reverse=True):
            if sequence.row >= 0:  # not with another beam of its search
                self.preempt(sequence, may_save=False)
        self._rows.send_all_again()
