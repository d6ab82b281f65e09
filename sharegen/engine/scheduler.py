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

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq

from sharegen.engine.batch import Chunk, DecodeBatch, PrefillBatch, prefill_batch
from sharegen.engine.block_pool import BlockPool
from sharegen.engine.lengths import Lengths
from sharegen.engine.prefix_cache import PrefixCache
from sharegen.engine.prefix_tree import Node
from sharegen.engine.prompt_logprobs import want
from sharegen.engine.request import Request
from sharegen.engine.rows import Rows
from sharegen.engine.sequence import Group, Sequence
from sharegen.errors import CapacityError


class Scheduler:
    """Queues of one engine, and the policy by which they move.

    max_sequences: rows. chunk_tokens: prefill is cut at multiples of this within a node, and a
    batch holds about as many tokens. ahead_tokens: how many tokens are prefilled beyond what fills
    the free rows. padded, scratch_block: see Rows. levels: see PrefixTree.
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
        levels: int | None = None,
    ) -> None:
        self.pool = pool
        self.max_sequences = max_sequences
        self.context_length = context_length
        self.chunk_tokens = chunk_tokens
        self.ahead_tokens = ahead_tokens

        self.cache = PrefixCache(pool, levels)
        self.rows = Rows(max_sequences, pool.block_size, scratch_block, padded)
        self.lengths = Lengths()
        self.waiting: deque[Group] = deque()  # prompts not prefilled yet, in order
        self.ready: deque[Sequence] = deque()  # first token drawn, no row; the preempted first

        self.num_waiting = 0  # samples whose first token has not been drawn
        self.preemptions = 0
        self.prompt_tokens_computed = 0
        self._unfinished: set[Group] = set()
        self._ending: dict[Node, list[Group]] = {}  # groups to draw when the node is computed
        self._blocked = False  # samples wait for blocks, not for rows

    # -- in and out ---------------------------------------------------------------------------

    def add(self, requests: Seq[Request]) -> None:
        """Put requests into the tree and the queue.

        One call sees all sharing among its requests. A request without samples only takes part in
        where the tree splits.
        """
        leaves = self.cache.insert(requests)
        for request, leaf in zip(requests, leaves, strict=True):
            if request.samples:
                self.waiting.append(self._enter(request, leaf))
        self.cache.prune()

    def fork(self, request: Request, sequence: Sequence | None) -> None:
        """Put a request whose prompt is that of `sequence` and its outputs first in the queue.

        Without a sequence, or where the prompt's log-probabilities are wanted, the prompt is one
        like others.
        """
        if sequence is None or request.params.prompt_logprobs is not None:
            self.add([request])
            self.waiting.rotate(1)
            return
        leaf = self.cache.fork(sequence, request.prompt_token_ids)
        self.waiting.appendleft(self._enter(request, leaf))

    def find(self, key: int, sample: int) -> Sequence | None:
        """The sample of a request while it runs, waits for a row, or is kept."""
        waiting = (sequence for sequence in self.ready if not sequence.finished)
        for sequence in (*self.rows.running(), *waiting, *self.cache.kept):
            if sequence.group.request.key == key and sequence.sample == sample:
                return sequence
        return None

    def _enter(self, request: Request, leaf: Node) -> Group:
        """A request whose prompt ends at `leaf`, about to wait."""
        group = Group(request, leaf, self.context_length)
        self._fit(group)
        self.num_waiting += group.unfinished
        self._unfinished.add(group)
        self._ending.setdefault(leaf, []).append(group)
        if request.params.prompt_logprobs is not None:
            want(leaf, request.params.prompt_logprobs)
        self.cache.hold(leaf)
        return group

    def _fit(self, group: Group) -> None:
        """Make the tables wide enough for the group's samples, and see that one fits the pool."""
        blocks = max(1, self.pool.blocks_for(group.limit - 1))
        self.rows.make_wide(blocks)
        prompt = sum(self.pool.blocks_for(node.length) for node in group.leaf.path())
        if prompt + blocks > self.pool.num_blocks:
            raise CapacityError(
                f"the KV cache holds {self.pool.num_blocks} blocks of {self.pool.block_size} "
                f"tokens, but one sample needs {prompt + blocks} ({group.leaf.end} prompt tokens "
                f"and up to {group.limit} new ones): give it more memory or lower max_tokens"
            )

    def draw(self, group: Group, tokens: Seq[int], logprobs: Seq[float]) -> list[Sequence]:
        """The first tokens of a group's samples have come; its sequences are ready to join."""
        sequences = [
            Sequence(group, sample, int(token), float(logprob))
            for sample, token, logprob in zip(group.request.samples, tokens, logprobs, strict=True)
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

    def take_back(self, batch: PrefillBatch) -> None:
        """A prefill batch did not run: its tokens are to be computed, and its groups wait again."""
        for chunk in reversed(batch.chunks):
            chunk.node.computed = chunk.start
            self.prompt_tokens_computed -= chunk.end - chunk.start
        for group in reversed(batch.groups):
            self._ending.setdefault(group.leaf, []).insert(0, group)
            self.waiting.appendleft(group)
            self.num_waiting += group.unfinished

    def preempt_all(self) -> None:
        """A step of the rows did not run, or only in part: all replay what they have drawn."""
        for sequence in sorted(self.rows.running(), key=lambda s: s.joined, reverse=True):
            self._preempt(sequence)
        self.rows.send_all_again()

    @property
    def num_running(self) -> int:
        return self.rows.num_running

    @property
    def has_work(self) -> bool:
        return bool(self._unfinished)

    def check_integrity(self) -> None:
        """Assert that every block has its owner and every row its tables."""
        self.cache.check_integrity(self.rows.running())
        self.rows.check_integrity()
        assert all(self.cache.is_resident(s.group.leaf) for s in self.rows.running())

    # -- one step -----------------------------------------------------------------------------

    def schedule(self, compact: bool) -> PrefillBatch | DecodeBatch | None:
        """The next batch, or None while everything waits for steps in flight.

        compact: whether rows may move (no step is in flight).
        """
        # Rows whose last token has been launched leave before anyone has seen it.
        for sequence in self.rows.past_limit():
            self._vacate(sequence, ended=True)
        preempted = self._grow()
        if not preempted:
            self._admit()
        chunks, groups = self._plan_prefill() if not preempted else ([], [])
        if chunks:
            return prefill_batch(chunks, groups, self.pool.block_size)
        if self.num_running:
            return self.rows.next_batch(self.rows.compact() if compact else [])
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
        if self.cache.kept:
            self.cache.forget_oldest()
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
                    self.cache.drop(unless=[sequence.group.leaf])
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
        return max(1, self.pool.blocks_for(int(length) - 1))

    # -- prefill ------------------------------------------------------------------------------

    def _plan_prefill(self) -> tuple[list[Chunk], list[Group]]:
        """Chunks to prefill next, and the groups whose first tokens they yield."""
        chunks: list[Chunk] = []
        groups: list[Group] = []
        first = self._first_ready()
        if first is not None and not self.cache.is_resident(first.group.leaf):
            self._plan_path(first.group, chunks, groups)
            return chunks, groups
        free_rows = self.max_sequences - self.num_running - len(self.ready)
        if free_rows <= 0 or self._blocked:
            return chunks, groups
        # A prompt whose samples would find no blocks takes the room of those before it.
        promised = sum(self._expected_blocks(s.group, len(s.tokens)) for s in self.ready)
        while self.waiting:
            planned = sum(group.unfinished for group in groups)
            tokens = sum(chunk.end - chunk.start for chunk in chunks)
            if planned >= free_rows and not 0 < tokens < self.ahead_tokens:
                break
            known = len(groups)
            if not self._plan_path(self.waiting[0], chunks, groups, promised):
                break
            promised += sum(self._expected_blocks(g) * g.unfinished for g in groups[known:])
        return chunks, groups

    def _plan_path(
        self, group: Group, chunks: list[Chunk], groups: list[Group], promised: int = 0
    ) -> bool:
        """Add the chunks that the group's path misses; False when they don't all fit now.

        promised: blocks to leave for samples that have their prompt, but no row yet.
        """
        missing = self.cache.missing(group.leaf)
        if self.num_running == 0 and not chunks:
            if not self.cache.spare(missing + 1):
                self.cache.drop(unless=[group.leaf])
        elif missing:
            growth = self.rows.growth(self.lengths.expected())
            if not self.cache.spare(missing + growth + promised + 1):
                return False
        tokens = sum(chunk.end - chunk.start for chunk in chunks)
        for node in group.leaf.path():
            if not node.blocks:
                self.cache.allocate(node)
            while node.computed < node.length:
                whole = node.computed // self.chunk_tokens + 1  # chunks may be smaller than before
                end = min(node.length, whole * self.chunk_tokens)
                if tokens and tokens + end - node.computed > self.chunk_tokens:
                    return False
                chunks.append(Chunk(node, node.computed, end))
                tokens += end - node.computed
                self.prompt_tokens_computed += end - node.computed
                node.computed = end
            for ending in self._ending.pop(node, ()):  # their logits are here now, and never again
                self.waiting.remove(ending)
                self.num_waiting -= ending.unfinished
                groups.append(ending)
        return True
