"""Which tokens are computed next: requests in, batches out; never touches a tensor.

Iteration-level batching. Requests are admitted in order; the nodes of their prompts are prefilled
parents first, in chunks at fixed places (so that a node's arithmetic never depends on what else
runs); the first tokens of all samples are drawn from the prompt's logits; samples join as rows and
blocks allow and leave at once when they end. When blocks run out all the same, prompts that were
prefilled ahead are dropped first, then the youngest sequences are preempted. A preempted sequence
keeps its tokens, and its KV in host memory where that pays; else it replays the tokens when it
rejoins, before anything new is admitted.

Where requests say which of their samples are required, rows go to those: first to what has its
prompt, then to new prompts. Only rows that would be empty go to samples that may yet be cancelled.

The host may run one step ahead of the device: whatever `schedule` decides rests on the number of
steps launched, never on the tokens that they will draw.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.prefix_tree import Node, PrefixTree
from sharegen.engine.cache.prompt_logprobs import want
from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.core.beam_search import Choice
from sharegen.engine.core.request import Request
from sharegen.engine.schedule.admission import Admission
from sharegen.engine.schedule.batch_builder import (
    Tables,
    equals_together,
    fill_step,
    one_by_one,
    prefill_step,
)
from sharegen.engine.schedule.batch_rows import BatchRows
from sharegen.engine.schedule.beams import begin, go_on
from sharegen.engine.schedule.capacity import Capacity
from sharegen.engine.schedule.first_rows import FirstRows
from sharegen.engine.schedule.preemption import Preemption
from sharegen.engine.schedule.prefill_queue import PrefillQueue
from sharegen.engine.schedule.ready import ReadyQueue
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup
from sharegen.engine.schedule.step import ChosenPrefill, PrefillStep, Step
from sharegen.engine.schedule.swapping import SwapCost, Swapping

LEAST_CHUNK = 256
LEAST_SEQUENCES = 8
"""Tokens of a prefill batch and sequences decoded together: below that a job would hardly move."""


class Scheduler:
    """The queues of one engine, and the policy by which requests move through them.

    Args:
        pool: the blocks of the KV cache.
        max_sequences: rows, which are the sequences that decode together.
        context_length: the most tokens of a prompt and its output together.
        chunk_tokens: tokens that a prefill batch holds, about.
        cut_tokens: as `PrefillQueue` takes it.
        ahead_tokens: how many tokens are prefilled beyond what fills the free rows.
        ahead_steps: a row counts as free for that so many steps before its limit.
        padded, scratch_block: as `BatchRows` takes them.
        seed: random seed of requests without one.
        tree: an empty tree, which says what prompts share; by default all that is worth it.
        states: slots for a model that keeps states.
        mix_together: whether chunks of equal length are one batch of mixers.
        host_slots: blocks that host memory holds for preempted sequences.
        swap_cost: seconds that using them takes.
        one_pass: the most tokens of a preempted sequence that are computed again together.
        fills_rows: whether they are rows of a decoding step, which gives the bits that they had;
            else one prefill pass has all of them.
        deterministic: whether nothing that decides about the order of sums may depend on the batch:
            layouts say what the job's tree says of their nodes, and a preempted sequence gets its
            KV as it had it before.
        forks_anew: whether a fork computes all that its parent drew as a prompt's tokens, whoever
            still has their KV: so when somebody forks does not matter to its bits.
        first_rows: rows until the first sample has ended, as `FirstRows` has it.
        least_width, patience, streams: as `BatchRows` takes them.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_sequences: int,
        context_length: int,
        chunk_tokens: int,
        cut_tokens: int | None = None,
        ahead_tokens: int,
        ahead_steps: int = 0,
        padded: Callable[[int], int],
        scratch_block: int,
        seed: int = 0,
        tree: PrefixTree | None = None,
        states: StateSlots | None = None,
        mix_together: bool = False,
        host_slots: int = 0,
        swap_cost: SwapCost | None = None,
        one_pass: int = 0,
        fills_rows: bool = False,
        deterministic: bool = False,
        forks_anew: bool = False,
        first_rows: int | None = None,
        least_width: int | None = None,
        patience: float = 0.0,
        streams: bool = False,
    ) -> None:
        self.pool = pool
        self.max_sequences = max_sequences
        self.context_length = context_length
        self.seed = seed

        self.states = StateSlots() if states is None else states
        self._mixed = equals_together if mix_together else one_by_one
        self.cache: PrefixCache[Sequence] = PrefixCache(
            pool, tree, self.states, marks_alone=deterministic
        )
        self.rows = BatchRows(
            max_sequences, pool.block_size, scratch_block, padded, self.states, deterministic,
            least_width, patience, streams,
        )  # fmt: skip
        self.ready = ReadyQueue()  # first token drawn, no row
        assert fills_rows or not (deterministic and one_pass), "a pass rounds otherwise than steps"
        self.fills_rows, self._by_tree = fills_rows, deterministic
        self.swapping = Swapping(pool, host_slots, swap_cost or SwapCost(), one_pass)
        self.admission = Admission(self.rows, self.ready, self.cache, self.swapping)
        self.prefill = PrefillQueue(
            self.admission,
            chunk_tokens,
            ahead_tokens,
            ahead_steps,
            cut_tokens,
        )
        self.preemption = Preemption(self.admission)
        self.capacity = Capacity(self.cache, context_length)
        self.first_rows = FirstRows(first_rows)
        self._paths: dict[int, tuple[Request, list[int]]] | None = {} if forks_anew else None
        self._widest = 1  # rows of the beam search with most

        self.row_steps = 0  # tokens given to the rows
        self.cancelled = self.cancelled_tokens = 0  # samples that had begun, and tokens of all
        self._unfinished: set[SequenceGroup] = set()
        self._by_key: dict[int, list[SequenceGroup]] = {}  # of these

    # -- in and out ---------------------------------------------------------------------------

    def add_requests(self, requests: Seq[Request], splits: Seq[Seq[int]] | None = None) -> None:
        """Put requests that were checked into the tree and the queue.

        Args:
            requests: one call sees all sharing among them. A request without samples only takes
                part in where the tree splits.
            splits: as `PrefixCache.insert` takes them.
        """
        own: dict[Node, Node] = {}  # instead of leaves whose path does not fit the pool
        for request, leaf in zip(requests, self.cache.insert(requests, splits), strict=True):
            if not request.samples:
                continue
            if not self.capacity.fits(request, leaf):
                if leaf not in own:
                    own[leaf] = self.cache.plant(request.tokens)
                leaf = own[leaf]
            self._enter(request, leaf)
        if own:
            warnings.warn(
                "the KV cache is too small for all nodes that prompts are made of, so some are "
                f"computed whole and share nothing ({len(own):,}): give it more memory",
                stacklevel=2,
            )
        if own or not all(request.samples for request in requests):
            self.cache.prune()

    def alive(self, key: int) -> Iterator[Sequence]:
        """Yield the sequences of a request that have their first token and have not ended."""
        for group in self._by_key.get(key, ()):
            yield from group.alive.values()

    def fork(self, request: Request, origin: Request, sequence: Sequence | None) -> None:
        """Put a request first in the queue whose prompt is that of `origin` and outputs of it.

        sequence: what drew these, while anything of it is there.
        """
        if self._paths is None:
            leaf = self.cache.fork(request, sequence)
        else:
            of, splits = self._paths.get(origin.key, (None, []))
            leaf = self.cache.fork_anew(request, splits if of is origin else [])
        fits = self.capacity.fits(request, leaf)
        group = self._enter(request, leaf if fits else self.cache.plant(request.tokens))
        self.prefill.waiting.move_to_end(group, last=False)
        if not fits:
            self.cache.prune()

    def without_row(self) -> Iterator[Sequence]:
        """Iterate over the samples that have their first token and no row, not yet or no longer."""
        return iter(self.ready)

    def find(self, key: int, sample: int) -> Sequence | None:
        """Return a sample while it runs, waits for a row or is kept; else None."""
        for sequence in (*self.rows.running(), *self.without_row(), *self.cache.kept):
            if sequence.group.request.key == key and sample in sequence.samples:
                return sequence
        return None

    def check(self, request: Request) -> None:
        """Raise CapacityError for a request of which one sample can never run, or its beams."""
        self.capacity.check(request, self.max_sequences)

    def _enter(self, request: Request, leaf: Node) -> SequenceGroup:
        """Let a request wait whose prompt ends at `leaf`."""
        group = SequenceGroup(request, leaf, self.context_length, self.seed)
        if self._paths is not None:
            self._paths[request.key] = request, leaf.splits()
        if request.is_endless:
            group.end_at(self.capacity.most_outputs(leaf))
        self.rows.make_wide(self.capacity.blocks_at_end(group.limit))
        self.prefill.add_group(group)
        self._unfinished.add(group)
        self._widest = max(self._widest, request.rows)
        self._by_key.setdefault(request.key, []).append(group)
        self.cache.hold(leaf)
        want(self.cache.stored, leaf, request)
        return group

    def draw(self, group: SequenceGroup, tokens: Seq[int], logprobs: Seq[float]) -> list[Sequence]:
        """Make sequences of a group's first tokens, which are ready to join.

        Args:
            tokens, logprobs: of the group's samples, in their order.

        Returns:
            The sequences; those that were cancelled meanwhile have ended.
        """
        self.prefill.drawing -= group.num_required
        sequences = [
            Sequence(group, sample, int(token), float(logprob))
            for sample, token, logprob in zip(group.drawn, tokens, logprobs, strict=True)
        ]
        for sequence in sequences:
            sequence.finished = not sequence.samples
            if group.search is not None:
                begin(sequence)
        group.alive = {s.sample: s for s in sequences if not s.finished}
        self.ready.add_samples(group, group.alive.values())
        return sequences

    def go_on(self, group: SequenceGroup, choices: Seq[Choice]) -> None:
        """Take a beam search a token further, with the beams that were chosen."""
        go_on(group, choices, self.rows, self.pool)

    def finish(self, sequence: Sequence) -> None:
        """Free the row, the blocks and the unused nodes of a sequence that has ended.

        Its blocks stay where they are to be kept for forks.
        """
        length = sequence.num_tokens
        self.admission.lengths.note(length, is_end=length < sequence.group.limit)
        self.first_rows.end()
        self._end(sequence, keep=sequence.group.keeps)

    def _end(self, sequence: Sequence, keep: bool) -> None:
        assert not sequence.finished
        group = sequence.group
        self.swapping.forget(group.alive.pop(sequence.sample))
        for each in sequence.together:
            each.finished = True
            each.matcher = None
            if each.row >= 0:
                self.admission.evict(each, keep=keep)
            elif each.waits:
                self.ready.forget(each)
        self._lessen(group, 1)

    def _lessen(self, group: SequenceGroup, samples: int) -> None:
        """Note that samples of a group do not come any more; the group goes with the last one."""
        group.unfinished -= samples
        if group.unfinished == 0:
            self._unfinished.discard(group)
            self._by_key[group.request.key].remove(group)
            if not self._by_key[group.request.key]:
                del self._by_key[group.request.key]
            self.cache.release(group.leaf)

    def call(self, key: int, required: int) -> None:
        """Make the samples of a request with an index below `required` required from now on."""
        for group in self._by_key.get(key, ()):
            if group.required is None or group.required >= required:
                continue
            before, group.required = group.num_required, required
            if group.alive:
                self.ready.call(group)
            elif group not in self.prefill.waiting:
                self.prefill.drawing += group.num_required - before

    def cancel(self, key: int, samples: Collection[int] | None) -> list[int]:
        """End samples of a request that are not finished, all of them by default; returns these.

        Their rows and blocks are free at once. What a step in flight draws for them is dropped.
        """
        ended: list[int] = []
        for group in list(self._by_key.get(key, ())):
            known = [sample for drawn in group.alive or group.drawn
                     for sample in group.samples_of(drawn)]  # fmt: skip
            wanted = [sample for sample in known if samples is None or sample in samples]
            group.cancelled.update(wanted)
            ended += wanted
            self._drop_cancelled(group)
        return ended

    def _drop_cancelled(self, group: SequenceGroup) -> None:
        """Take out what a group does for samples that were cancelled, wherever it stands."""
        if group.alive:
            for sequence in list(group.alive.values()):
                if not sequence.samples:
                    beams = sequence.together
                    self.cancelled += len(beams) if sequence.joined >= 0 else 0
                    self.cancelled_tokens += sum(beam.num_tokens for beam in beams)
                    self.admission.lengths.note(sequence.num_tokens, is_end=False)
                    self._end(sequence, keep=False)
            return
        left = [sample for sample in group.drawn if group.samples_of(sample)]
        dropped = group.unfinished - len(left)
        if group in self.prefill.waiting:
            self.prefill.leave(group, left)
        if dropped:
            self._lessen(group, dropped)

    def clear(self, is_whole: bool = True) -> None:
        """Drop everything that waits or runs; what prompts shared stays.

        is_whole: whether all that was begun was done. Else nothing stays, whatever was interrupted
        half-way.
        """
        for sequence in list(self.rows.running()):
            self.admission.evict(sequence)
        if is_whole:
            self.cache.forget_kept()
            for group in self._unfinished:
                self.cache.release(group.leaf)
            self.cache.prune()
        else:
            self.cache.clear()
        self._unfinished.clear()
        self._by_key.clear()
        if self._paths is not None:
            self._paths.clear()
        self.prefill.clear()
        self.ready.clear()
        self.swapping.clear()
        self.admission.clear()
        self.rows.send_all_again()
        self.rows.forget_steps()
        self.first_rows.begin()
        self._widest = 1

    def shrink(self, step: Step) -> str | None:
        """Take back a step that found no memory, and make those to come smaller.

        Nothing is lost by it. Prompts whose chunks did not run wait again, in their place;
        sequences whose step did not run are preempted and replay the tokens that they have. What
        was drawn stays.

        Returns:
            What is smaller from now on, for a warning; None where nothing can be.
        """
        for sequence in self.swapping.take_back():
            self.preemption.preempt(sequence, may_save=False)
        if isinstance(step, PrefillStep):
            prefill = self.prefill
            prefill.take_back(step)
            least = max(LEAST_CHUNK, prefill.cut_tokens or 0)
            if prefill.chunk_tokens > least:
                prefill.chunk_tokens = max(least, prefill.chunk_tokens // 2)
                if not self.fills_rows:
                    self.swapping.one_pass = min(self.swapping.one_pass, prefill.chunk_tokens)
                return f"prompts are computed {prefill.chunk_tokens:,} tokens at a time"
        # Fewer sequences leave more to prefill, too: the graphs of wide batches hold memory.
        self.preemption.preempt_all()
        self.rows.forget_size()
        least = max([LEAST_SEQUENCES, *(group.request.rows for group in self._unfinished)])
        if self.max_sequences > least:
            self.max_sequences = max(least, self.max_sequences // 2)
            return f"{self.max_sequences:,} sequences decode together"
        return None

    @property
    def num_running(self) -> int:
        return self.rows.num_running

    @property
    def num_unfinished(self) -> int:
        """Samples that wait or run, those among them whose prompt is being computed."""
        return sum(group.unfinished for group in self._unfinished)

    @property
    def needs_sync(self) -> bool:
        """Return whether the next step must wait for those in flight.

        Rows may move only while there is none, and which beams go on depends on what they drew; so
        does what most rows may draw. Where few rows wait for their tokens, these sit out every
        other step instead, and the others keep their pace.
        """
        waiting = self.rows.num_beams > 0 or 2 * self.rows.num_structured > self.num_running
        return self.rows.wants_compaction or waiting

    @property
    def can_overlap(self) -> bool:
        """Return whether most rows leave now, at their limits, and others are ready to join.

        To admit these takes the host longer than a step, and depends on no token: unless one of
        them was preempted, and replays its own.
        """
        leaving = self.rows.num_leaving(0)
        is_full = self.ready.rows_required >= leaving and not self.ready.has_preempted
        return 2 * leaving > self.num_running and is_full

    @property
    def has_work(self) -> bool:
        return bool(self._unfinished)

    def check_integrity(self) -> None:
        """Assert that every block has its owner and every row its tables."""
        self.cache.check_integrity(self.rows.running())
        self.rows.check_integrity()
        self.ready.check_integrity()
        self.prefill.check_integrity()
        self.swapping.check_integrity(self.ready)
        assert {group for groups in self._by_key.values() for group in groups} == self._unfinished
        assert all(not s.finished and s.samples for s in self.rows.running())
        assert all(self.cache.is_resident(s.group.leaf) for s in self.rows.running())

    # -- one step -----------------------------------------------------------------------------

    def schedule(self, is_idle: bool) -> Step | None:
        """Return the next step, or None while everything waits for steps in flight.

        Args:
            is_idle: whether no step is in flight, so that rows may move.
        """
        self.cache.settle_states()
        # Rows whose last token has been launched leave before anyone has seen it.
        for sequence in self.rows.past_limit():
            self.admission.evict(sequence, keep=sequence.group.keeps)
        plan = ChosenPrefill()
        if not self.preemption.grow():
            most = self.first_rows.most(self.max_sequences, self._widest)
            self.admission.admit(most)
            plan = self.prefill.plan(most)
            if not plan.chunks and self.ready.num_speculative:
                self.admission.admit(most - self.prefill.drawing, speculative=True)
                plan = self.prefill.plan_speculative(most)
        if plan.chunks:
            return self._with_swaps(self._prefill_step(plan))
        if self.swapping.filling:
            return self._with_swaps(self._fill_step())
        if self.num_running:
            moves = self.rows.compact() if is_idle else []
            self.row_steps += self.num_running
            self.first_rows.step()
            return self._with_swaps(self.rows.next_step(moves, self.cache.stored))
        return None

    def _prefill_step(self, plan: ChosenPrefill) -> PrefillStep:
        stored, size = self.cache.stored, self.pool.block_size
        if not self.states.are_kept:
            return prefill_step(plan.chunks, plan.groups, stored, size)
        return prefill_step(plan.chunks, plan.groups, stored, size, self._mixed)

    def _fill_step(self) -> PrefillStep:
        stored, size, latents = (
            self.cache.stored,
            self.pool.block_size,
            self.pool.blocks_per_full > 1,
        )
        if not self.fills_rows:
            filled = self.swapping.fill(self.prefill.chunk_tokens)
            parts = [(sequence, 0, sequence.fed) for sequence in filled]
            return fill_step(parts, stored, size, latents)
        self.rows.show_layout()  # of the step after this one
        width, scratch = self.rows.block_tables.shape[1], self.rows.scratch_block
        parts = self.swapping.fill_rows(self.max_sequences)
        return fill_step(parts, stored, size, latents, Tables(width, scratch, self._by_tree))

    def _with_swaps(self, step: Step) -> Step:
        swaps = self.swapping.next_batch()
        if swaps is None:
            return step
        if isinstance(step, PrefillStep):
            return replace(step, batch=replace(step.batch, swaps=swaps))
        return replace(step, batch=replace(step.batch, swaps=swaps))
