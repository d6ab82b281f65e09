"""Prefill: which prompts are computed next, and how much of them at a time.

The nodes of prompts are computed parents first, in chunks at fixed places. Prompts that wait come
in order, as far as rows are free for their samples, and a little ahead of these.
"""

from __future__ import annotations

from collections import OrderedDict

from sharegen.engine.cache.block_pool import BlocksNeeded
from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.schedule.admission import Admission, Outlook
from sharegen.engine.schedule.sequence import SequenceGroup
from sharegen.engine.schedule.step import ChosenPrefill, Chunk, PrefillStep

_MOST_READY = 64  # times the rows: samples that wait, from where no prompt is computed ahead


class PrefillQueue:
    """Chooses which prompts are computed next, and how much of them.

    Args:
        admission: admits sequences, and knows rows, ready sequences and the cache.
        chunk_tokens, ahead_tokens, ahead_steps: as `Scheduler` takes them.
        cut_tokens: nodes are cut at multiples of this, however small batches become; None to cut
            them at multiples of chunk_tokens.

    Attributes:
        waiting: the groups whose prompts are not computed, in order.
        num_waiting: samples whose first token has not been drawn.
        drawing: samples that are required of prompts in flight.
    """

    def __init__(
        self,
        admission: Admission,
        chunk_tokens: int,
        ahead_tokens: int,
        ahead_steps: int,
        cut_tokens: int | None = None,
    ) -> None:
        self.admission = admission
        self.rows, self.ready, self.cache = admission.rows, admission.ready, admission.cache
        self.cut_tokens = cut_tokens
        self.chunk_tokens = max(chunk_tokens, cut_tokens or 0)
        self.ahead_tokens = ahead_tokens
        self.ahead_steps = ahead_steps
        self.waiting: OrderedDict[SequenceGroup, None] = OrderedDict()
        self.num_waiting = 0
        self.drawing = 0
        self._ending: dict[
            Node, list[SequenceGroup]
        ] = {}  # groups to draw when the node is computed

    def add_group(self, group: SequenceGroup) -> None:
        """Let a group wait for its prompt, behind the others."""
        self.waiting[group] = None
        self.num_waiting += group.unfinished
        self._ending.setdefault(group.leaf, []).append(group)

    def leave(self, group: SequenceGroup, left: list[int]) -> None:
        """Keep only these samples of a waiting group to be drawn."""
        group.drawn = left
        self.num_waiting -= group.unfinished - len(left)
        if not left:
            del self.waiting[group]
            self._ending[group.leaf].remove(group)
            if not self._ending[group.leaf]:
                del self._ending[group.leaf]

    def take_back(self, step: PrefillStep) -> None:
        """Take back a step that did not run: its tokens are missing, and its groups wait again."""
        for chunk in reversed(step.chunks):
            self.cache.forget_computed(chunk.node, chunk.start)
        for group in reversed(step.groups):
            self.drawing -= group.num_required
            self._ending.setdefault(group.leaf, []).insert(0, group)
            self.waiting[group] = None
            self.waiting.move_to_end(group, last=False)
            self.num_waiting += group.unfinished

    def clear(self) -> None:
        """Drop all: no prompt waits any more, and none is in flight."""
        self.waiting.clear()
        self.drawing = 0
        self._ending.clear()
        self.num_waiting = 0

    def check_integrity(self) -> None:
        """Assert that the samples that wait are those of the groups."""
        assert self.num_waiting == sum(group.unfinished for group in self.waiting)

    def plan(self, most: int) -> ChosenPrefill:
        """Choose the chunks to prefill next, and the groups whose first tokens they yield.

        most: rows that there may be.
        """
        plan = ChosenPrefill()
        first = self.ready.first()
        if first is not None and not self.cache.is_resident(first.group.leaf):
            self._plan_path(first.group, plan, Outlook(self.admission), most)
            return plan
        free_rows = most - self.rows.num_running - self.ready.rows_required
        free_rows += max(0, self.rows.num_leaving(self.ahead_steps) - self.drawing)
        # So many samples may wait that further prompts would only fill the memory.
        has_enough_speculative = self.ready.num_speculative >= _MOST_READY * most
        if not self.waiting or free_rows <= 0 or self.admission.blocked or has_enough_speculative:
            return plan
        outlook = Outlook(self.admission)
        # A prompt whose samples would find no blocks takes the room of those before it.
        for sequence in self.ready.required():
            outlook.add_waiting(sequence)
        while self.waiting:
            if plan.samples >= free_rows and not 0 < plan.tokens < self.ahead_tokens:
                break
            known = len(plan.groups)
            if not self._plan_path(next(iter(self.waiting)), plan, outlook, most):
                break
            for group in plan.groups[known:]:
                outlook.add_group(group, count=group.num_required)
        return plan

    def plan_speculative(self, most: int) -> ChosenPrefill:
        """The prompt of the first sample that could take a row, where it was given up."""
        plan = ChosenPrefill()
        first = self.ready.first(speculative=True)
        has_row = self.rows.num_running + self.drawing < most
        if first is not None and has_row and not self.cache.is_resident(first.group.leaf):
            self._plan_path(first.group, plan, Outlook(self.admission), most)
        return plan

    def _plan_path(
        self, group: SequenceGroup, plan: ChosenPrefill, outlook: Outlook, most: int
    ) -> bool:
        """Add the chunks that the group's path misses; False when they don't all fit now.

        outlook: of the rows, and of samples that have none yet.
        """
        self._note_cached(group)
        full_blocks, blocks = missing = self.cache.missing(group.leaf)
        states = self.cache.missing_states(group.leaf)
        slots = self.cache.states
        if self.rows.num_running == 0 and not plan.chunks:
            has_states = slots.has(states + group.request.rows)
            if not (has_states and self.cache.spare(BlocksNeeded(full_blocks, blocks + 1))):
                self.cache.drop_all_but(group.leaf)
        else:
            promised = self._promised_states(most) + group.request.rows
            if states and not slots.has(states + promised):
                return False
            if any(missing) and not outlook.leaves(BlocksNeeded(full_blocks, blocks + 1)):
                return False
        for node in group.leaf.path():
            self.cache.place(node)
            kv = self.cache.stored[node]
            while kv.computed < node.length:
                cut = self.cut_tokens or self.chunk_tokens
                whole = kv.computed // cut + 1  # chunks may be smaller than before
                end = min(node.length, whole * cut)
                if plan.tokens and plan.tokens + end - kv.computed > self.chunk_tokens:
                    return False
                plan.add_chunk(Chunk(node, kv.computed, end, self.cache.move_state(node)))
                self.cache.note_computed(node, end)
            for ending in self._ending.pop(node, ()):  # their logits are here now, and never again
                self._note_cached(ending)
                del self.waiting[ending]
                self.num_waiting -= ending.unfinished
                plan.groups.append(ending)
                plan.samples += ending.num_required
                self.drawing += ending.num_required
        return True

    def _promised_states(self, most: int) -> int:
        """Slots to leave for the rows of samples whose prompts are computed, or about to be."""
        free_rows = most - self.rows.num_running
        return min(free_rows, self.ready.rows_required + self.drawing)

    def _note_cached(self, group: SequenceGroup) -> None:
        """Remember how much of a prompt was there before anything was computed for it."""
        if group.num_cached is None:
            stored = self.cache.stored
            group.num_cached = sum(stored[node].computed for node in group.leaf.path())
