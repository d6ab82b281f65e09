"""Which tokens are computed next: tree and pool in, batches out; never touches a tensor.

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
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

import numpy as np

from sharegen.engine.batch import Chunk, DecodeBatch, PrefillBatch, Queries, shared_layout
from sharegen.engine.block_pool import BlockPool
from sharegen.engine.prefix_tree import Node, PrefixTree
from sharegen.engine.prompt_logprobs import can_tell, want, wanted_of
from sharegen.engine.request import Request
from sharegen.engine.sequence import Group, Sequence
from sharegen.errors import CapacityError

_LENGTHS_NEEDED = 32  # finished samples before their lengths say what to expect of the others


class Scheduler:
    """Rows, tables and queues of one engine.

    max_sequences: rows. chunk_tokens: prefill is cut at multiples of this within a node, and a
    batch holds about as many tokens. ahead_tokens: how many tokens are prefilled beyond what fills
    the free rows. padded: rows of the batch that is run for n live rows. scratch_block: stands in
    the tables of holes; nothing reads what is written there.
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
        self.tree = PrefixTree(pool.block_size, levels)
        self.max_sequences = max_sequences
        self.context_length = context_length
        self.chunk_tokens = chunk_tokens
        self.ahead_tokens = ahead_tokens
        self.padded = padded
        self.scratch_block = scratch_block

        self.waiting: deque[Group] = deque()  # prompts not prefilled yet, in order
        self.ready: deque[Sequence] = deque()  # first token drawn, no row; the preempted first
        self.rows: list[Sequence | None] = []
        self.kept: dict[Sequence, None] = {}  # ended, their KV there for forks; the oldest first
        # position is that of the row's next input; a hole has prefix_length 0, position -1.
        self.block_tables = np.full((max_sequences, 1), scratch_block, dtype=np.int32)
        self.prefix_length = np.zeros(max_sequences, dtype=np.int32)
        self.position = np.full(max_sequences, -1, dtype=np.int32)
        self.last_position = np.full(max_sequences, -1, dtype=np.int32)  # the input of its limit

        self.num_waiting = 0  # samples whose first token has not been drawn
        self.preemptions = 0
        self.prompt_tokens_computed = 0
        self._unfinished: set[Group] = set()
        self._ending: dict[Node, list[Group]] = {}  # groups to draw when the node is computed
        self._holes: list[int] = []
        self._joined = 0
        self._changed: set[int] = set()
        self._growth: list[tuple[int, int, int]] = []
        self._tree_changed = True
        self._blocked = False  # samples wait for blocks, not for rows
        self._lengths = [0, 0.0, 0.0]  # finished samples: count, sum, sum of squares

    # -- in and out ---------------------------------------------------------------------------

    def add(self, requests: Seq[Request]) -> None:
        """Put requests into the tree and the queue.

        One call sees all sharing among its requests. A request without samples only takes part in
        where the tree splits.
        """
        prompts = [request.prompt_token_ids for request in requests]

        def fits(index: int, node: Node) -> bool:
            top = requests[index].params.prompt_logprobs
            return top is None or can_tell(node, prompts[index][node.end], top)

        leaves = self.tree.insert(prompts, fits=fits)
        for request, leaf in zip(requests, leaves, strict=True):
            if request.samples:
                self.waiting.append(self._enter(request, leaf))
        for node in reversed(list(self.tree.nodes())):
            if node.users == 0 and not node.children:
                self.tree.remove(node)

    def fork(self, request: Request, sequence: Sequence | None) -> None:
        """Put a request whose prompt is that of `sequence` and its outputs first in the queue.

        The KV that the sequence has of them becomes a node below its leaf, made of the blocks in
        which it lies: each has one more owner, and the sequence writes on behind. Without a
        sequence, or where the prompt's log-probabilities are wanted, the prompt is one like others.
        """
        prompt = request.prompt_token_ids
        if sequence is None or request.params.prompt_logprobs is not None:
            self.add([request])
            self.waiting.rotate(1)
            return
        parent = sequence.group.leaf
        # The logits of the last token are wanted, so it is computed anew if it ever was.
        length = min(sequence.fed, len(prompt) - parent.end - 1) if sequence.blocks else 0
        if length > 0:
            parent = self._node_of(sequence, prompt[parent.end : parent.end + length])
        leaf = self.tree.hang(parent, prompt[parent.end :])
        self.waiting.appendleft(self._enter(request, leaf))

    def _node_of(self, sequence: Sequence, tokens: Seq[int]) -> Node:
        """The node of a sequence's first outputs, made of its blocks unless it stands already."""
        parent = sequence.group.leaf
        for child in parent.children:
            if child.forked and child.tokens.tolist() == list(tokens):
                return child
        node = self.tree.hang(parent, tokens)
        node.blocks = sequence.blocks[: self.pool.blocks_for(node.length)]
        node.contiguous = False
        node.computed = node.length
        for block in node.blocks:
            self.pool.share(block)
        return node

    def find(self, key: int, sample: int) -> Sequence | None:
        """The sample of a request while it runs, waits for a row, or is kept."""
        waiting = (sequence for sequence in self.ready if not sequence.finished)
        for sequence in (*self._running(), *waiting, *self.kept):
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
        for node in leaf.path():
            node.users += 1
        return group

    def _fit(self, group: Group) -> None:
        """Make the tables wide enough for the group's samples, and see that one fits the pool."""
        blocks = max(1, self.pool.blocks_for(group.limit - 1))
        if blocks > self.block_tables.shape[1]:
            wider = np.full((self.max_sequences, blocks), self.scratch_block, dtype=np.int32)
            wider[:, : self.block_tables.shape[1]] = self.block_tables
            self.block_tables = wider
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
        count, total, squares = self._lengths
        length = len(sequence.tokens)
        self._lengths = [count + 1, total + length, squares + length * length]
        if sequence.row >= 0:
            self._vacate(sequence, ended=True)
        group = sequence.group
        group.unfinished -= 1
        if group.unfinished == 0:
            self._leave(group)

    def clear(self) -> None:
        """Drop everything that waits or runs, whatever was interrupted half-way."""
        for sequence in list(self._running()):
            self._vacate(sequence)
        for sequence in self.kept:
            self.pool.free(sequence.blocks)
        self.kept.clear()
        for node in self.tree.nodes():
            self.pool.free(node.blocks)
        self.tree = PrefixTree(self.pool.block_size, self.tree.levels)
        self._unfinished.clear()
        self.waiting.clear()
        self.ready.clear()
        self._ending.clear()
        self.num_waiting = 0
        # What the last batch was to change may never have arrived.
        self._changed.update(range(self.max_sequences))
        self._growth = []

    @property
    def num_running(self) -> int:
        return len(self.rows) - len(self._holes)

    @property
    def has_work(self) -> bool:
        return bool(self._unfinished)

    @property
    def wants_compaction(self) -> bool:
        """Whether closing the holes would make the batch smaller."""
        return self.padded(self.num_running) < self.padded(len(self.rows))

    def check_integrity(self) -> None:
        """Assert that every block has its owner and every row its tables."""
        nodes = list(self.tree.nodes())
        running = list(self._running())
        owners: list[Node | Sequence] = [*nodes, *running, *self.kept]
        self.pool.check_integrity([owner.blocks for owner in owners])
        for sequence in running:
            row = sequence.row
            assert self.rows[row] is sequence
            assert self.block_tables[row, : len(sequence.blocks)].tolist() == sequence.blocks
            assert self.prefix_length[row] == sequence.group.leaf.end
            assert self.position[row] == sequence.group.leaf.end + sequence.fed
            assert all(node.computed == node.length for node in sequence.group.leaf.path())
        for node in nodes:
            assert node.users > 0
            assert len(node.blocks) in (0, self.pool.blocks_for(node.length))
            assert not node.children or node.forked or node.length >= self.pool.block_size

    # -- one step -----------------------------------------------------------------------------

    def schedule(self, compact: bool) -> PrefillBatch | DecodeBatch | None:
        """The next batch, or None while everything waits for steps in flight.

        compact: whether rows may move (no step is in flight).
        """
        self._retire_at_limit()
        preempted = self._grow()
        if not preempted:
            self._admit()
        chunks, groups = self._plan_prefill() if not preempted else ([], [])
        if chunks:
            return self._prefill_batch(chunks, groups)
        if self.num_running:
            return self._decode_batch(self._compact() if compact else [])
        return None

    def _retire_at_limit(self) -> None:
        """Rows whose last token has been launched leave before anyone has seen it."""
        live = len(self.rows)
        due = np.flatnonzero(
            (self.position[:live] > self.last_position[:live]) & (self.position[:live] >= 0)
        )
        for row in due.tolist():
            sequence = self.rows[row]
            assert sequence is not None
            self._vacate(sequence, ended=True)

    def _grow(self) -> bool:
        """Give every row the block of its next input; True when someone had to be preempted."""
        live = len(self.rows)
        offset = self.position[:live] - self.prefix_length[:live]
        starts_block = (offset % self.pool.block_size == 0) & (self.position[:live] >= 0)
        needing = [self.rows[row] for row in np.flatnonzero(starts_block).tolist()]
        preempted = False
        for sequence in needing:
            assert sequence is not None
            column = sequence.fed // self.pool.block_size
            if sequence.row < 0 or column < len(sequence.blocks):
                continue  # preempted just now, or given its block already
            block = self.pool.allocate()
            while block is None and sequence.row >= 0:
                preempted |= self._reclaim()
                block = self.pool.allocate() if sequence.row >= 0 else None
            if block is not None:
                self._append_block(sequence, block)
        return preempted

    def _reclaim(self) -> bool:
        """Make room: give up what is kept, drop prompts that were prefilled ahead, else preempt.

        Returns whether it had to preempt.
        """
        if self.kept:
            self._forget(next(iter(self.kept)))
            return False
        busy = {node for s in self._running() for node in s.group.leaf.path()}
        idle = [node for node in self.tree.nodes() if node.blocks and node not in busy]
        if idle:
            self._drop(idle)
            return False
        youngest = max(self._running(), key=lambda s: s.joined)
        self._preempt(youngest)
        return True

    def _drop(self, nodes: list[Node]) -> None:
        """Give up the KV of nodes; they are prefilled again when their turn comes."""
        for node in nodes:
            self.pool.free(node.blocks)
            node.blocks, node.computed = [], 0

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        self._vacate(sequence)
        # The youngest goes first, so that the oldest ends up at the front.
        self.ready.appendleft(sequence)

    # -- admission ----------------------------------------------------------------------------

    def _admit(self) -> None:
        """Seat ready sequences while rows and blocks last."""
        self._blocked = False
        growth = self._expected_growth() if self.ready else 0
        while self.num_running < self.max_sequences:
            sequence = self._first_ready()
            if sequence is None or not _resident(sequence.group.leaf):
                return  # its prompt was dropped: prefill comes first
            own = self._expected_blocks(sequence.group, len(sequence.tokens))
            if self.num_running == 0:
                if not self._spare(1):
                    self._drop_others(sequence.group)
            elif not self._spare(own + growth):
                self._blocked = True
                return
            block = self.pool.allocate()
            assert block is not None, "a checked request does not fit the empty pool"
            self._seat(self.ready.popleft(), block)
            growth += own - 1

    def _first_ready(self) -> Sequence | None:
        """The next sequence to seat; those whose first token ended them are passed over."""
        while self.ready and self.ready[0].finished:
            self.ready.popleft()
        return self.ready[0] if self.ready else None

    def _drop_others(self, group: Group) -> None:
        """Make room for a group when nothing runs."""
        own = set(group.leaf.path())
        self._drop([node for node in self.tree.nodes() if node.blocks and node not in own])

    def _seat(self, sequence: Sequence, block: int) -> None:
        if self._holes:
            row = self._holes.pop()
            self.rows[row] = sequence
        else:
            row = len(self.rows)
            self.rows.append(sequence)
        self._joined += 1
        sequence.joined = self._joined
        sequence.row = row
        sequence.fed = 0
        sequence.replay = len(sequence.tokens)
        end = sequence.group.leaf.end
        self.prefix_length[row] = end
        self.position[row] = end
        # Outputs 0 .. limit - 2 are inputs: the last one is drawn, never fed.
        self.last_position[row] = end + sequence.group.limit - 2
        self._append_block(sequence, block)
        self._changed.add(row)
        self._tree_changed = True

    def _append_block(self, sequence: Sequence, block: int) -> None:
        column = len(sequence.blocks)
        sequence.blocks.append(block)
        self.block_tables[sequence.row, column] = block
        self._growth.append((sequence.row, column, block))

    def _vacate(self, sequence: Sequence, ended: bool = False) -> None:
        row = sequence.row
        if ended and sequence.group.request.keep:
            self.kept[sequence] = None
            for node in sequence.group.leaf.path():
                node.users += 1
        else:
            self.pool.free(sequence.blocks)
            sequence.blocks = []
        sequence.row = -1
        self._empty(row)
        self._holes.append(row)
        self._tree_changed = True

    def _empty(self, row: int) -> None:
        self.rows[row] = None
        self.block_tables[row] = self.scratch_block
        self.prefix_length[row] = 0
        self.position[row] = -1
        self.last_position[row] = -1
        self._changed.add(row)

    def _leave(self, group: Group) -> None:
        """The group's path has one user less; nodes without users go."""
        self._unfinished.discard(group)
        self._release(group.leaf)

    def _forget(self, sequence: Sequence) -> None:
        """Keep the KV of an ended sequence no longer."""
        del self.kept[sequence]
        self.pool.free(sequence.blocks)
        sequence.blocks = []
        self._release(sequence.group.leaf)

    def _spare(self, blocks: int) -> bool:
        """Whether so many blocks are free, after what is kept was given up as far as need be."""
        while self.pool.num_free < blocks and self.kept:
            self._forget(next(iter(self.kept)))
        return self.pool.num_free >= blocks

    def _release(self, leaf: Node) -> None:
        for node in reversed(leaf.path()):
            node.users -= 1
            if node.users == 0:
                self.pool.free(node.blocks)
                node.blocks = []
                self.tree.remove(node)

    def _expected_length(self) -> float:
        """Output tokens of a typical long sample, from those that have finished."""
        count, total, squares = self._lengths
        if count < _LENGTHS_NEEDED:
            return float("inf")
        mean = total / count
        return mean + max(0.0, squares / count - mean * mean) ** 0.5

    def _expected_blocks(self, group: Group, tokens: int = 1) -> int:
        """Blocks that a sample with so many tokens will probably hold at its end."""
        length = max(tokens, min(self._expected_length(), group.limit))
        return max(1, self.pool.blocks_for(int(length) - 1))

    def _expected_growth(self) -> int:
        """Blocks that the running sequences will probably still ask for."""
        seated = np.flatnonzero(self.position[: len(self.rows)] >= 0)
        position, prefix = self.position[seated], self.prefix_length[seated]
        end = np.minimum(self.last_position[seated], prefix + self._expected_length())
        end = np.maximum(end, position).astype(np.int64)
        size = self.pool.block_size
        return int(((end - prefix) // size - (position - prefix) // size).sum())

    # -- prefill ------------------------------------------------------------------------------

    def _plan_prefill(self) -> tuple[list[Chunk], list[Group]]:
        """Chunks to prefill next, and the groups whose first tokens they yield."""
        chunks: list[Chunk] = []
        groups: list[Group] = []
        first = self._first_ready()
        if first is not None and not _resident(first.group.leaf):
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
        path = group.leaf.path()
        missing = sum(self.pool.blocks_for(n.length) for n in path if not n.blocks)
        if self.num_running == 0 and not chunks:
            if not self._spare(missing + 1):
                self._drop_others(group)
        elif missing and not self._spare(missing + self._expected_growth() + promised + 1):
            return False
        tokens = sum(chunk.end - chunk.start for chunk in chunks)
        for node in path:
            if not node.blocks:
                found = self.pool.allocate_node(self.pool.blocks_for(node.length))
                assert found is not None, "a checked request does not fit the empty pool"
                node.blocks, node.contiguous = found
            while node.computed < node.length:
                end = min(node.length, node.computed + self.chunk_tokens)
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

    def _prefill_batch(self, chunks: list[Chunk], groups: list[Group]) -> PrefillBatch:
        size = self.pool.block_size
        starts = np.cumsum([0] + [chunk.end - chunk.start for chunk in chunks])
        tokens, positions, slots = [], [], []
        queries = []
        last_row: dict[Node, int] = {}
        for chunk, first in zip(chunks, starts[:-1].tolist(), strict=True):
            within = np.arange(chunk.start, chunk.end, dtype=np.int64)
            tokens.append(chunk.node.tokens[chunk.start : chunk.end])
            positions.append(within + chunk.node.position)
            slots.append(np.asarray(chunk.node.blocks)[within // size] * size + within % size)
            rows = range(first, first + len(within))
            queries.append(Queries(chunk.node, rows, chunk.start))
            last_row[chunk.node] = rows[-1]
        return PrefillBatch(
            token_ids=np.concatenate(tokens).astype(np.int64),
            positions=np.concatenate(positions),
            slots=np.concatenate(slots),
            chunk_starts=starts.tolist(),
            layout=shared_layout(queries),
            groups=groups,
            logit_rows=np.array([last_row[group.leaf] for group in groups], dtype=np.int64),
            logprobs=wanted_of(chunks, starts[:-1].tolist()),
        )

    # -- decode -------------------------------------------------------------------------------

    def _compact(self) -> list[tuple[int, int]]:
        """Move the last rows into the holes, when that makes the batch smaller."""
        if not self.wants_compaction:
            return []
        moves = []
        live = self.num_running
        sources = [row for row in range(live, len(self.rows)) if self.rows[row] is not None]
        for source, target in zip(sources, sorted(h for h in self._holes if h < live), strict=True):
            sequence = self.rows[source]
            assert sequence is not None
            self.rows[target] = sequence
            sequence.row = target
            for table in (self.block_tables, self.prefix_length, self.position,
                          self.last_position):  # fmt: skip
                table[target] = table[source]
            self._empty(source)
            self._changed.update((source, target))
            moves.append((source, target))
        del self.rows[live:]
        self._holes = []
        self._growth = []  # every entry of a moved row is in `changed`; the others stand in it too
        self._tree_changed = True
        self._changed.update(range(live))
        return moves

    def _decode_batch(self, moves: list[tuple[int, int]]) -> DecodeBatch:
        count = len(self.rows)
        layout = None
        if self._tree_changed:
            layout = shared_layout(
                [Queries(leaf, rows, leaf.length) for leaf, rows in self._rows_by_leaf()]
            )
        forced = []
        for sequence in self._running():
            if sequence.fed < sequence.replay:
                forced.append((sequence.row, sequence.tokens[sequence.fed]))
            sequence.fed += 1
        changed = sorted(self._changed)
        batch = DecodeBatch(
            num_rows=count,
            sequences=list(self.rows),
            index=(self.position - self.prefix_length + 1)[:count].tolist(),
            moves=moves,
            changed=changed,
            block_tables=self.block_tables[changed],
            prefix_length=self.prefix_length[changed],
            position=self.position[changed],
            growth=self._growth,
            forced=forced,
            layout=layout,
        )
        self.position[:count] += self.position[:count] >= 0
        self._changed, self._growth, self._tree_changed = set(), [], False
        return batch

    def _rows_by_leaf(self) -> list[tuple[Node, list[int]]]:
        by_leaf: dict[Node, list[int]] = {}
        for sequence in self._running():
            by_leaf.setdefault(sequence.group.leaf, []).append(sequence.row)
        return list(by_leaf.items())

    def _running(self) -> Iterator[Sequence]:
        return (sequence for sequence in self.rows if sequence is not None)


def _resident(leaf: Node) -> bool:
    """Whether the whole path's KV has been computed."""
    return all(node.computed == node.length and node.blocks for node in leaf.path())
