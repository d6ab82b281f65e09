"""Which tokens are computed next: requests in, batches out; never touches a tensor.

Iteration-level batching. Requests are admitted in order; the nodes of their prompts are prefilled
parents first, in chunks at fixed places (so that a node's arithmetic never depends on what else
runs); the first tokens of all samples are drawn from the prompt's logits; samples join as rows and
blocks allow and leave at once when they end. When blocks run out all the same, prompts that were
prefilled ahead are dropped first, then the youngest sequences are preempted. A preempted sequence
keeps its tokens and replays them when it rejoins, before anything new is admitted.

The host may run one step ahead of the device: whatever `schedule` decides rests on the number of
steps launched, never on the tokens that they will draw.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from sharegen.engine.cache.block_pool import BlockPool
from sharegen.engine.cache.prefix_cache import PrefixCache
from sharegen.engine.cache.prefix_tree import Node, PrefixTree
from sharegen.engine.cache.prompt_logprobs import want
from sharegen.engine.request import Request
from sharegen.engine.schedule.packing import prefill_step
from sharegen.engine.schedule.rows import Rows
from sharegen.engine.schedule.sequence import Group, Lengths, Sequence, most_tokens
from sharegen.engine.schedule.step import Chunk, PrefillPlan, PrefillStep, Step
from sharegen.errors import CapacityError

LEAST_CHUNK = 256
LEAST_SEQUENCES = 8
"""Tokens of a prefill batch and sequences decoded together: below that a job would hardly move."""


class Scheduler:
    """Queues of one engine, and the policy by which they move.

    max_sequences: rows. chunk_tokens: prefill is cut at multiples of this within a node, and a
    batch holds about as many tokens. ahead_tokens: how many tokens are prefilled beyond what fills
    the free rows. padded, scratch_block: see Rows. seed: of requests that bring none. tree: an
    empty one, which says what prompts share; by default all that is worth it.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_sequences: int,
        context_length: int,
        chunk_tokens: int,
        ahead_tokens: int,
        padded: Callable[[int], int],
        scratch_block: int,
        seed: int = 0,
        tree: PrefixTree | None = None,
    ) -> None:
        self.pool = pool
        self.max_sequences = max_sequences
        self.context_length = context_length
        self.chunk_tokens = chunk_tokens
        self.ahead_tokens = ahead_tokens

        self.seed = seed

        self.cache: PrefixCache[Sequence] = PrefixCache(pool, tree)
        self.rows = Rows(max_sequences, pool.block_size, scratch_block, padded)
        self.lengths = Lengths()
        self.waiting: OrderedDict[Group, None] = OrderedDict()  # prompts not prefilled, in order
        self.ready: deque[Sequence] = deque()  # first token drawn, no row; the preempted first

        self.num_waiting = 0  # samples whose first token has not been drawn
        self.preemptions = 0
        self._unfinished: set[Group] = set()
        self._ending: dict[Node, list[Group]] = {}  # groups to draw when the node is computed
        self._blocked = False  # samples wait for blocks, not for rows

    # -- in and out ---------------------------------------------------------------------------

    def add(self, requests: Seq[Request]) -> None:
        """Put requests that were checked into the tree and the queue.

        One call sees all sharing among its requests. A request without samples only takes part in
        where the tree splits.
        """
        own: dict[Node, Node] = {}  # instead of leaves whose path does not fit the pool
        for request, leaf in zip(requests, self.cache.insert(requests), strict=True):
            if not request.samples:
                continue
            if not self._fits(request, leaf):
                if leaf not in own:
                    own[leaf] = self.cache.plant(request.prompt_token_ids)
                leaf = own[leaf]
            self._enter(request, leaf)
        self.cache.prune()

    def fork(self, request: Request, sequence: Sequence | None) -> None:
        """Put a request whose prompt is that of `sequence` and its outputs first in the queue."""
        leaf = self.cache.fork(request, sequence)
        fits = self._fits(request, leaf)
        group = self._enter(request, leaf if fits else self.cache.plant(request.prompt_token_ids))
        self.waiting.move_to_end(group, last=False)
        if not fits:
            self.cache.prune()

    def unseated(self) -> Iterator[Sequence]:
        """Samples whose first token is drawn and that have no row yet, or no more."""
        return (sequence for sequence in self.ready if not sequence.finished)

    def find(self, key: int, sample: int) -> Sequence | None:
        """The sample of a request while it runs, waits for a row, or is kept."""
        for sequence in (*self.rows.running(), *self.unseated(), *self.cache.kept):
            if sequence.group.request.key == key and sample in sequence.samples:
                return sequence
        return None

    def check(self, request: Request) -> None:
        """Raise CapacityError for a request of which one sample does not fit the pool."""
        limit = most_tokens(request, self.context_length)
        prompt = len(request.prompt_token_ids)
        need = self.pool.blocks_for(prompt) + self._blocks_at_end(limit)
        if need > self.pool.num_blocks:
            raise CapacityError(
                f"the KV cache holds {self.pool.num_blocks} blocks of {self.pool.block_size} "
                f"tokens, but one sample needs {need} ({prompt} prompt tokens and up to {limit} "
                "new ones): give it more memory or lower max_tokens"
            )

    def _fits(self, request: Request, leaf: Node) -> bool:
        """Whether the prompt's path fits, too: a block is not shared by two nodes."""
        own = self._blocks_at_end(most_tokens(request, self.context_length))
        return self.cache.blocks_of(leaf) + own <= self.pool.num_blocks

    def _blocks_at_end(self, length: int) -> int:
        """Blocks of a sample with so many outputs, of which the last is never fed."""
        return max(1, self.pool.blocks_for(length - 1))

    def _enter(self, request: Request, leaf: Node) -> Group:
        """A request whose prompt ends at `leaf` waits."""
        group = Group(request, leaf, self.context_length, self.seed)
        self.rows.make_wide(self._blocks_at_end(group.limit))
        self.waiting[group] = None
        self.num_waiting += group.unfinished
        self._unfinished.add(group)
        self._ending.setdefault(leaf, []).append(group)
        self.cache.hold(leaf)
        if request.params.prompt_logprobs is not None:
            want(self.cache.stored, leaf, request.params.prompt_logprobs)
        return group

    def draw(self, group: Group, tokens: Seq[int], logprobs: Seq[float]) -> list[Sequence]:
        """The first tokens of a group's samples have come; its sequences are ready to join."""
        sequences = [
            Sequence(group, sample, int(token), float(logprob))
            for sample, token, logprob in zip(group.drawn, tokens, logprobs, strict=True)
        ]
        self.ready.extend(sequences)
        return sequences

    def finish(self, sequence: Sequence) -> None:
        """A sequence has ended: its row, its blocks and unused nodes go at once.

        Its blocks stay where they are to be kept for forks.
        """
        assert not sequence.finished
        sequence.finished = True
        self.lengths.note(len(sequence.tokens))
        if sequence.row >= 0:
            self._vacate(sequence, ended=True)
        group = sequence.group
        group.unfinished -= 1
        if group.unfinished == 0:
            self._unfinished.discard(group)
            self.cache.release(group.leaf)

    def clear(self) -> None:
        """Drop everything that waits or runs, whatever was interrupted half-way."""
        for sequence in list(self.rows.running()):
            self._vacate(sequence)
        self.cache.clear()
        self._unfinished.clear()
        self.waiting.clear()
        self.ready.clear()
        self._ending.clear()
        self.num_waiting = 0
        self.rows.send_all_again()

    def shrink(self, step: Step) -> str | None:
        """A step found no memory: take it back, and make those to come smaller.

        Nothing is lost by it. Prompts whose chunks did not run wait again, in their place;
        sequences whose step did not run are preempted and replay the tokens that they have. What
        was drawn stays. Returns what is smaller from now on, or None where nothing can be.
        """
        if isinstance(step, PrefillStep):
            self._take_back(step)
            if self.chunk_tokens > LEAST_CHUNK:
                self.chunk_tokens = max(LEAST_CHUNK, self.chunk_tokens // 2)
                return f"prompts are computed {self.chunk_tokens:,} tokens at a time"
        # Fewer sequences leave more to prefill, too: the graphs of wide batches hold memory.
        self._preempt_all()
        if self.max_sequences > LEAST_SEQUENCES:
            self.max_sequences = max(LEAST_SEQUENCES, self.max_sequences // 2)
            return f"{self.max_sequences:,} sequences decode together"
        return None

    def _take_back(self, step: PrefillStep) -> None:
        """A prefill step did not run: its tokens are to be computed, and its groups wait again."""
        for chunk in reversed(step.chunks):
            self.cache.forget_computed(chunk.node, chunk.start)
        for group in reversed(step.groups):
            self._ending.setdefault(group.leaf, []).insert(0, group)
            self.waiting[group] = None
            self.waiting.move_to_end(group, last=False)
            self.num_waiting += group.unfinished

    def _preempt_all(self) -> None:
        """A step of the rows did not run, or only in part: all replay what they have drawn."""
        for sequence in sorted(self.rows.running(), key=lambda s: s.joined, reverse=True):
            self._preempt(sequence)
        self.rows.send_all_again()

    @property
    def num_running(self) -> int:
        return self.rows.num_running

    @property
    def wants_rest(self) -> bool:
        """Whether rows want to move, which they may only while no step is in flight."""
        return self.rows.wants_compaction

    @property
    def has_work(self) -> bool:
        return bool(self._unfinished)

    def check_integrity(self) -> None:
        """Assert that every block has its owner and every row its tables."""
        self.cache.check_integrity(self.rows.running())
        self.rows.check_integrity()
        assert all(self.cache.is_resident(s.group.leaf) for s in self.rows.running())

    # -- one step -----------------------------------------------------------------------------

    def schedule(self, at_rest: bool) -> Step | None:
        """The next step, or None while everything waits for steps in flight.

        at_rest: whether none is in flight, so that rows may move.
        """
        # Rows whose last token has been launched leave before anyone has seen it.
        for sequence in self.rows.past_limit():
            self._vacate(sequence, ended=True)
        preempted = self._grow()
        if not preempted:
            self._admit()
        plan = PrefillPlan() if preempted else self._plan_prefill()
        if plan.chunks:
            stored, size = self.cache.stored, self.pool.block_size
            return prefill_step(plan.chunks, plan.groups, stored, size)
        if self.num_running:
            moves = self.rows.compact() if at_rest else []
            return self.rows.next_step(moves, self.cache.stored)
        return None

    def _grow(self) -> bool:
        """Give every row the block of its next input; True when someone had to be preempted."""
        preempted = False
        for sequence in self.rows.at_block_start():
            column = sequence.fed // self.pool.block_size
            if sequence.row < 0 or column < len(sequence.blocks):
                continue  # preempted just now, or given its block already
            block = self.pool.allocate()
            while block is None and sequence.row >= 0:
                preempted |= self._reclaim()
                block = self.pool.allocate() if sequence.row >= 0 else None
            if block is not None:
                self.rows.append_block(sequence, block)
        return preempted

    def _reclaim(self) -> bool:
        """Make room: give up what is kept, drop prompts that were prefilled ahead, else preempt.

        Returns whether it had to preempt.
        """
        if self.cache.spare(1):
            return False
        if self.cache.drop(unless=(s.group.leaf for s in self.rows.running())):
            return False
        self._preempt(max(self.rows.running(), key=lambda s: s.joined))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._vacate(sequence)
        # The youngest goes first, so that the oldest ends up at the front.
        self.ready.appendleft(sequence)

    def _vacate(self, sequence: Sequence, ended: bool = False) -> None:
        """Take a sequence's row, and its blocks unless they are to be kept when it has ended."""
        self.rows.vacate(sequence)
        if ended and sequence.group.request.keep:
            self.cache.keep(sequence)
        else:
            self.pool.free(sequence.blocks)
            sequence.blocks = []

    # -- admission ----------------------------------------------------------------------------

    def _admit(self) -> None:
        """Seat ready sequences while rows and blocks last."""
        self._blocked = False
        growth = self.rows.growth(self.lengths.expected()) if self.ready else 0
        while self.num_running < self.max_sequences:
            sequence = self._first_ready()
            if sequence is None or not self.cache.is_resident(sequence.group.leaf):
                return  # its prompt was dropped: prefill comes first
            own = self._expected_blocks(sequence.group, len(sequence.tokens))
            if self.num_running == 0:
                if not self.cache.spare(1):
                    self.cache.drop_all_but(sequence.group.leaf)
            elif not self.cache.spare(own + growth):
                self._blocked = True
                return
            block = self.pool.allocate()
            assert block is not None, "a checked request does not fit the empty pool"
            self.rows.seat(self.ready.popleft(), block)
            growth += own - 1

    def _first_ready(self) -> Sequence | None:
        """The next sequence to seat; those whose first token ended them are passed over."""
        while self.ready and self.ready[0].finished:
            self.ready.popleft()
        return self.ready[0] if self.ready else None

    def _expected_blocks(self, group: Group, tokens: int = 1) -> int:
        """Blocks that a sample with so many tokens will probably hold at its end."""
        length = max(tokens, min(self.lengths.expected(), group.limit))
        return self._blocks_at_end(int(length))

    # -- prefill ------------------------------------------------------------------------------

    def _plan_prefill(self) -> PrefillPlan:
        """Chunks to prefill next, and the groups whose first tokens they yield."""
        plan = PrefillPlan()
        promised = self.rows.growth(self.lengths.expected())
        first = self._first_ready()
        if first is not None and not self.cache.is_resident(first.group.leaf):
            self._plan_path(first.group, plan, promised)
            return plan
        free_rows = self.max_sequences - self.num_running - len(self.ready)
        if free_rows <= 0 or self._blocked:
            return plan
        # A prompt whose samples would find no blocks takes the room of those before it.
        promised += sum(self._expected_blocks(s.group, len(s.tokens)) for s in self.ready)
        while self.waiting:
            if plan.samples >= free_rows and not 0 < plan.tokens < self.ahead_tokens:
                break
            known = len(plan.groups)
            if not self._plan_path(next(iter(self.waiting)), plan, promised):
                break
            for group in plan.groups[known:]:
                promised += self._expected_blocks(group) * group.unfinished
        return plan

    def _plan_path(self, group: Group, plan: PrefillPlan, promised: int) -> bool:
        """Add the chunks that the group's path misses; False when they don't all fit now.

        promised: blocks to leave for the growth of rows, and for samples that have no row yet.
        """
        missing = self.cache.missing(group.leaf)
        if self.num_running == 0 and not plan.chunks:
            if not self.cache.spare(missing + 1):
                self.cache.drop_all_but(group.leaf)
        elif missing and not self.cache.spare(missing + promised + 1):
            return False
        for node in group.leaf.path():
            self.cache.place(node)
            kv = self.cache.stored[node]
            while kv.computed < node.length:
                whole = kv.computed // self.chunk_tokens + 1  # chunks may be smaller than before
                end = min(node.length, whole * self.chunk_tokens)
                if plan.tokens and plan.tokens + end - kv.computed > self.chunk_tokens:
                    return False
                plan.add(Chunk(node, kv.computed, end))
                self.cache.note_computed(node, end)
            for ending in self._ending.pop(node, ()):  # their logits are here now, and never again
                del self.waiting[ending]
                self.num_waiting -= ending.unfinished
                plan.groups.append(ending)
                plan.samples += ending.unfinished
        return True
