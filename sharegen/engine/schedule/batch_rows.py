"""The rows of the batch: which sequence sits where, and the tables that attention reads by row.

A sequence keeps its row while it runs; one that leaves makes an empty row, which the next one
fills. Only what has changed since the last batch is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.state_slots import StateSlots
from sharegen.engine.cache.stored_kv import NodeKV
from sharegen.engine.core.batch import DecodeBatch, Int32, Int64
from sharegen.engine.schedule.batch_builder import Queries, shared_layout
from sharegen.engine.schedule.row_outputs import RowOutputs
from sharegen.engine.schedule.sequence import Sequence
from sharegen.engine.schedule.step import DecodeStep

_OF_NO_ROW = 256  # rows: what a step takes whatever its rows, which no smaller batch saves


class BatchRows:
    """The rows of a batch: `capacity` places, of which those up to the last live one are run.

    An empty row has prefix_length 0, position -1 and scratch_block in its table; nothing reads what
    is written there.

    Args:
        capacity: the most rows.
        block_size: tokens of a block.
        scratch_block: the block that empty rows write to.
        padded: says how many rows a batch of n live rows is run with.
        slots: the slots for states.
        by_tree: whether layouts say which nodes one sample alone reads in the job's tree.
        least_width: blocks that tables have at least; they widen by doubling. None for as wide as
            the longest sample needs. A CUDA graph is of one width.
        patience: how many steps dead rows may take the time of before the batch is made smaller,
            for which the device has to wait and may have to capture a CUDA graph; 0: none.
        streams: whether the tokens of samples that run are asked for all the time: then each
            sequence has a list of its own.

    Attributes:
        size: rows that the last step was run with, 0 where there was none.
        sequences: [rows so far], the sequence that each row has (None: an empty row).
        block_tables: [capacity, widest], the blocks of the row's own tokens.
        num_blocks: [capacity], how many of them the row has.
        prefix_length: [capacity], tokens of the prompt.
        position: [capacity], of the row's next input.
        last_position: [capacity], of the last input that its limit allows.
        replay: [capacity], tokens that the sequence had when it joined.
        states: [capacity, 3], the slots that the next step reads states from and writes them to,
            and the slot of the prompt's states; of an empty row zero, scratch and zero slot.
        outputs: what the rows have drawn, but for beams, structured outputs and what streams.
        num_beams: rows that are part of a beam search.
        num_structured: rows of which the host must know a token before the next can be drawn.
    """

    def __init__(
        self,
        capacity: int,
        block_size: int,
        scratch_block: int,
        padded: Callable[[int], int],
        slots: StateSlots,
        by_tree: bool = False,
        least_width: int | None = None,
        patience: float = 0.0,
        streams: bool = False,
    ) -> None:
        self.capacity = capacity
        self.size = 0
        self._patience = patience
        self._in_vain = 0.0  # steps that dead rows took, since the batch had another size
        self._by_tree = by_tree
        self._least_width = least_width
        self.block_size = block_size
        self.scratch_block = scratch_block
        self.padded = padded
        self.sequences: list[Sequence | None] = []
        width = least_width or 1
        self.block_tables = np.full((capacity, width), scratch_block, dtype=np.int32)
        self.prefix_length = np.zeros(capacity, dtype=np.int32)
        self.position = np.full(capacity, -1, dtype=np.int32)
        self.last_position = np.full(capacity, -1, dtype=np.int32)
        self.replay = np.zeros(capacity, dtype=np.int32)
        self.num_blocks = np.zeros(capacity, dtype=np.int32)
        self.outputs = RowOutputs(capacity)
        self._streams = streams
        self._widen_outputs(width)
        self._num_apart = 0  # rows whose tokens are not in `outputs`
        self._in_flight: deque[DecodeStep] = deque()
        self.num_beams = 0
        self._no_states = (slots.zero, slots.scratch, slots.zero)
        self.states = np.tile(np.array(self._no_states, dtype=np.int32), (capacity, 1))
        # The identity of the node above each row: of a row that lives, so does the node.
        self._leaf = np.zeros(capacity, dtype=np.int64)
        self._empty_rows: list[int] = []
        self._joined = 0
        self._changed: set[int] = set()
        self._growth: list[tuple[int, ...]] = []
        self._copies: dict[int, int] = {}  # blocks to copy before the next step: target, source
        self._admitted: dict[Sequence, None] = {}  # since the last step
        self._layout_changed = True
        self.num_structured = 0

    @property
    def num_running(self) -> int:
        return len(self.sequences) - len(self._empty_rows)

    def running(self) -> Iterator[Sequence]:
        return (sequence for sequence in self.sequences if sequence is not None)

    def make_wide(self, blocks: int) -> None:
        """Let tables hold so many blocks."""
        if blocks > self.block_tables.shape[1]:
            if self._least_width is not None:
                blocks = 1 << (blocks - 1).bit_length()
            wider = np.full((self.capacity, blocks), self.scratch_block, dtype=np.int32)
            wider[:, : self.block_tables.shape[1]] = self.block_tables
            self.block_tables = wider
            self._widen_outputs(blocks)

    def _widen_outputs(self, blocks: int) -> None:
        if not self._streams:
            self.outputs.widen(blocks * self.block_size + 1)  # the last one is never fed

    # -- who sits where -----------------------------------------------------------------------

    def admit(self, sequence: Sequence, blocks: list[int], states: tuple[int, int]) -> None:
        """Give a sequence a row, its first blocks, and the slots of its leaf's states and its own.

        It goes on from its leaf's, which so need no copy. Where what it has fed is on its way into
        the blocks, it sits out one step, which so need not wait for that.
        """
        if self._empty_rows:
            row = self._empty_rows.pop()
            self.sequences[row] = sequence
        else:
            row = len(self.sequences)
            self.sequences.append(sequence)
        self._joined += 1
        self.num_beams += sequence.group.search is not None
        sequence.joined = self._joined
        self.num_structured += sequence.structured
        fed, leaf = sequence.fed, sequence.group.leaf
        sequence.row, sequence.rows = row, self
        sequence.replay = sequence.num_tokens
        self._admitted[sequence] = None
        self.replay[row] = sequence.replay
        if self._is_apart(sequence):
            self._num_apart += 1
        else:
            sequence.hand_over()
        end = leaf.end
        self._leaf[row] = id(leaf)
        self.prefix_length[row] = end
        self.position[row] = end + fed
        # Outputs 0 .. limit - 2 are inputs: the last one is drawn, never fed.
        self.last_position[row] = end + sequence.group.limit - 2
        self.states[row] = (*states, states[0])
        sequence.state = states[1]
        sequence.blocks = blocks
        self.block_tables[row, : len(blocks)] = blocks
        self.num_blocks[row] = len(blocks)
        self._changed.add(row)
        self._layout_changed = True

    def _is_apart(self, sequence: Sequence) -> bool:
        """Whether it has a list of its tokens: beams change theirs, and grammars read them."""
        return self._streams or sequence.structured or sequence.group.search is not None

    def append_block(self, sequence: Sequence, block: int) -> None:
        column = len(sequence.blocks)
        sequence.blocks.append(block)
        self.block_tables[sequence.row, column] = block
        self.num_blocks[sequence.row] = column + 1
        self._growth.append((sequence.row, column, block))

    def rewrite(self, sequence: Sequence, blocks: list[int], written: int | None) -> None:
        """Give a row other blocks; written: the block that the last of them is to be a copy of."""
        sequence.blocks = blocks
        self.block_tables[sequence.row] = self.scratch_block
        self.block_tables[sequence.row, : len(blocks)] = blocks
        self._changed.add(sequence.row)
        if written is not None:
            self._copies[blocks[-1]] = written

    def content(self, block: int) -> int:
        """The block that holds what is in a row's block when its next step begins."""
        return self._copies.get(block, block)

    def go_on_from(self, sequence: Sequence, other: Sequence) -> None:
        """Let the next step of one read the states of another, and write to its own slot still.

        A step reads all its rows' states before it writes any.
        """
        self.states[sequence.row, 0] = self.states[other.row, 0]
        self._changed.add(sequence.row)

    def evict(self, sequence: Sequence) -> None:
        """Take the sequence's row; its blocks are still its own."""
        for block in sequence.blocks[-1:]:
            self._copies.pop(block, None)
        for step in self._in_flight:
            if sequence.row < len(step.index):
                step.left.setdefault(sequence.row, sequence)
        self._num_apart -= self._is_apart(sequence)
        sequence.take_back()
        fed, sequence.rows = sequence.fed, None
        sequence.fed = fed
        self._empty(sequence.row)
        self.num_beams -= sequence.group.search is not None
        self.num_structured -= sequence.structured
        self._empty_rows.append(sequence.row)
        sequence.row = -1
        self._layout_changed = True
        if self.sequences[-1] is None:
            self._drop_last_empty_rows()

    def _drop_last_empty_rows(self) -> None:
        """End the batch with a live row, so that empty rows alone wait for no compaction."""
        while self.sequences and self.sequences[-1] is None:
            self.sequences.pop()
        self._empty_rows = [row for row in self._empty_rows if row < len(self.sequences)]

    def _empty(self, row: int) -> None:
        self.sequences[row] = None
        self.block_tables[row] = self.scratch_block
        self.num_blocks[row] = 0
        self.prefix_length[row] = 0
        self.position[row] = -1
        self.last_position[row] = -1
        self.states[row] = self._no_states
        self._changed.add(row)

    def forget_size(self) -> None:
        """Let the next step be of any size: a job begins, or there is no memory for this one."""
        self.size, self._in_vain = 0, 0.0

    @property
    def wants_compaction(self) -> bool:
        """Whether closing the empty rows would make the batch smaller, and it is time to."""
        fewer = self.padded(self.num_running) < self.padded(len(self.sequences))
        return fewer and self._may_shrink

    @property
    def _may_shrink(self) -> bool:
        return self._in_vain >= self._patience

    def _next_size(self) -> int:
        """How many rows the next step is run with: more at once, fewer when it is time to."""
        size = self.padded(len(self.sequences))
        if size > self.size or (size < self.size and self._may_shrink):
            self.size, self._in_vain = size, 0.0
        dead = self.size - self.padded(self.num_running)
        self._in_vain += dead / (self.size + _OF_NO_ROW)
        return self.size

    def compact(self) -> list[tuple[int, ...]]:
        """Move the last rows into the empty rows, when that makes the batch smaller; (from, to)."""
        if not self.wants_compaction:
            return []
        moves: list[tuple[int, ...]] = []
        live = self.num_running
        sources = [row for row in range(live, len(self.sequences)) if self.sequences[row]]
        for source, target in zip(
            sources, sorted(h for h in self._empty_rows if h < live), strict=True
        ):
            sequence = self.sequences[source]
            assert sequence is not None
            self.sequences[target] = sequence
            sequence.row = target
            for table in (self.block_tables, self.num_blocks, self.prefix_length, self.position,
                          self.last_position, self.replay, self.states,
                          self._leaf):  # fmt: skip
                table[target] = table[source]
            self.outputs.move(source, target)
            self._empty(source)
            self._changed.update((source, target))
            moves.append((source, target))
        del self.sequences[live:]
        self._empty_rows = []
        self._layout_changed = True
        self._changed.update(range(live))
        return moves

    # -- how far they are ---------------------------------------------------------------------

    def fed(self, row: int) -> int:
        """How many of its own tokens the sequence of a row has fed."""
        return int(self.position[row] - self.prefix_length[row])

    def past_limit(self) -> list[Sequence]:
        """Return the sequences whose last token has been launched."""
        return self._at(self._past_limit(0))

    def num_leaving(self, steps: int) -> int:
        """Rows of which so many more steps launch the last token that their limit allows."""
        return int(self._past_limit(steps).sum())

    def _past_limit(self, steps: int) -> np.ndarray:
        live = len(self.sequences)
        position, last = self.position[:live], self.last_position[:live]
        past: np.ndarray = (position + steps > last) & (position >= 0)
        return past

    def at_block_start(self) -> list[Sequence]:
        """Return the sequences whose next input is the first token of a block."""
        live = len(self.sequences)
        position = self.position[:live]
        offset = position - self.prefix_length[:live]
        return self._at((offset % self.block_size == 0) & (position >= 0))

    def ages(self) -> Int64:
        """Return the output tokens of each running sequence, by the steps launched."""
        fed, replay, _ = self._progress()
        return np.maximum(fed + 1, replay)

    def blocks_now_and_at_limits(self) -> tuple[int, int]:
        """Blocks up to the next inputs, and up to the last ones that the limits allow."""
        fed, _, last = self._progress()
        blocks = fed // self.block_size, last // self.block_size
        return int(blocks[0].sum()) + len(fed), int(blocks[1].sum()) + len(last)

    def empty_places(self) -> tuple[int, int]:
        """Places of the rows' blocks that no token is in: all, and those that may still be filled.

        The beams of a search have only full blocks in common, so that none is counted twice.
        """
        live = len(self.sequences)
        position = self.position[:live]
        fed = position - self.prefix_length[:live]
        empty = self.num_blocks[:live] * self.block_size - fed
        fillable = np.minimum(empty, self.last_position[:live] + 1 - position)
        empty_rows = len(self._empty_rows)  # of which each counts as one
        return int(empty.sum()) - empty_rows, int(fillable.sum()) - empty_rows

    def kinds(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Running sequences by whole blocks: those fed, those drawn, those before the last input's.

        Returns these and how many sequences of each kind there are, [n] each.
        """
        fed, replay, last = self._progress()
        numbers = np.stack([fed, np.maximum(fed, replay - 1), last]) // self.block_size
        radix = self.block_tables.shape[1] + 1
        codes = np.sort((numbers[0] * radix + numbers[1]) * radix + numbers[2])
        first = np.flatnonzero(np.diff(codes, prepend=-1))  # np.unique imports numpy.ma: 60 ms
        count = np.diff(first, append=len(codes))
        codes = codes[first]
        return codes // radix**2, codes // radix % radix, codes % radix, count

    def _progress(self) -> tuple[Int64, Int64, Int64]:
        """Inputs so far, tokens at admission, and last input's number of the running rows."""
        admitted = np.flatnonzero(self.position[: len(self.sequences)] >= 0)
        prefix = self.prefix_length[admitted].astype(np.int64)
        last = self.last_position[admitted] - prefix
        return self.position[admitted] - prefix, self.replay[admitted].astype(np.int64), last

    def _at(self, mask: np.ndarray) -> list[Sequence]:
        return [self.at(row) for row in np.flatnonzero(mask).tolist()]

    def at(self, row: int) -> Sequence:
        """The sequence of a row that is not empty."""
        sequence = self.sequences[row]
        assert sequence is not None, "an empty row has no position"
        return sequence

    # -- the next step ------------------------------------------------------------------------

    def next_step(self, moves: list[tuple[int, ...]], stored: Mapping[Node, NodeKV]) -> DecodeStep:
        """One step of all rows, which are one position further afterwards.

        moves: what `compact` moved. stored: where the nodes above the rows lie.
        """
        count = len(self.sequences)
        layout = None
        if self._layout_changed:
            queries = [Queries(leaf, rows, leaf.length) for leaf, rows in self._by_leaf()]
            layout = shared_layout(queries, stored, by_tree=self._by_tree)
        forced: list[tuple[int, ...]] = []
        resting: list[int] = []
        bounded: dict[int, Sequence] = {}
        joined = [sequence for sequence in self._admitted if sequence.row >= 0]
        arriving = {sequence.row for sequence in joined if sequence.fed > 0}
        inputs = self.position[:count] - self.prefix_length[:count]
        for row in self._rows_to_look_at(inputs, arriving):
            sequence = self.at(row)
            if row in arriving:
                resting.append(row)
                continue
            fed = int(inputs[row])
            if sequence.structured:
                known = sequence.num_tokens
                if fed == known:  # its input is on the device, and what it may draw depends on that
                    resting.append(row)
                    continue
                if fed + 1 == known:
                    bounded[row] = sequence
            if sequence.structured or fed < sequence.replay:
                forced.append((row, sequence.token(fed), int(self.position[row])))
        index = np.where(self.position[:count] >= 0, inputs + 1, -1)
        index[resting] = -1
        changed = np.array(sorted(self._changed), dtype=np.int32)
        started = np.array(sorted(sequence.row for sequence in joined), dtype=np.int32)
        batch = DecodeBatch(
            num_rows=count,
            size=self._next_size(),
            moves=_table(moves, 2),
            changed=changed,
            block_tables=self.block_tables[changed],
            prefix_length=self.prefix_length[changed],
            position=self.position[changed],
            last_position=self.last_position[changed],
            states=self.states[changed],
            started=started,
            drawings=[self.at(row).drawing for row in started.tolist()],
            copies=_table([(source, target) for target, source in self._copies.items()], 2),
            growth=_table([entry for entry in self._growth if entry[0] not in self._changed], 3),
            forced=_table(forced, 3),
            resting=np.array(resting, dtype=np.int32),
            layout=layout,
        )
        goes = (self.position[:count] >= 0) & (index >= 0)
        self.position[:count] += goes
        self.states[:count, 0][goes] = self.states[:count, 1][goes]  # their own from now on
        self._changed, self._growth, self._copies, self._layout_changed = set(), [], {}, False
        self._admitted.clear()
        step = DecodeStep(batch, index, bounded)
        self._in_flight.append(step)
        return step

    def landed(self, step: DecodeStep) -> None:
        """What a step drew is on the host; those before it are, too, or never ran."""
        while self._in_flight and self._in_flight.popleft().left is not step.left:
            pass

    def apart(self, step: DecodeStep) -> Iterator[tuple[int, Sequence]]:
        """Those that the step drew for and whose tokens are not in `outputs`, or not in its row."""
        if not self._num_apart:
            yield from sorted(step.left.items(), key=lambda item: item[0])
            return
        for row in range(len(step.index)):
            sequence = step.left.get(row)
            if sequence is not None:
                yield row, sequence
            elif row < len(self.sequences):
                sequence = self.sequences[row]
                if sequence is not None and self._is_apart(sequence):
                    yield row, sequence

    def _rows_to_look_at(self, fed: Int32, arriving: set[int]) -> list[int]:
        """The rows whose next input may be another than what they drew last: most just go on.

        fed: [num_rows], how many tokens each row has fed. arriving: rows that sit the step out.
        """
        live = self.position[: len(fed)] >= 0
        if not (self.num_structured or self.num_beams):  # whose inputs others choose
            live &= fed < self.replay[: len(fed)]
            live[list(arriving)] = True
        return np.flatnonzero(live).tolist()

    def _by_leaf(self) -> list[tuple[Node, Int64]]:
        """The rows under each node, by the first of them."""
        live = np.flatnonzero(self.position[: len(self.sequences)] >= 0)
        leaves = self._leaf[live]
        order = np.argsort(leaves, kind="stable")
        ends = (np.flatnonzero(np.diff(leaves[order])) + 1).tolist()
        rows = live[order]
        parts = pairwise([0, *ends, len(rows)])
        found = [rows[start:end] for start, end in parts if end > start]
        found.sort(key=lambda part: int(part[0]))
        return [(self.at(part[0]).group.leaf, part) for part in found]

    def show_layout(self) -> None:
        """Send the next step's layout, for another one is put in its place."""
        self._layout_changed = True

    def send_all_again(self) -> None:
        """What the last batch was to change may never have arrived."""
        self._changed.update(range(self.capacity))

    def forget_steps(self) -> None:
        """A job has ended, whose steps in flight nobody waits for, and no row lives."""
        self._in_flight.clear()
        self.outputs.forget_stops()

    def check_integrity(self) -> None:
        """Assert that every row's tables are those of its sequence."""
        beams = sum(sequence.group.search is not None for sequence in self.running())
        assert self.num_beams == beams
        assert self._num_apart == sum(map(self._is_apart, self.running()))
        for sequence in self.running():
            row = sequence.row
            assert self.sequences[row] is sequence
            assert self.block_tables[row, : len(sequence.blocks)].tolist() == sequence.blocks
            assert self.prefix_length[row] == sequence.group.leaf.end
            assert self.position[row] >= sequence.group.leaf.end and sequence.rows is self
            assert self._leaf[row] == id(sequence.group.leaf)
            assert self.num_blocks[row] == len(sequence.blocks)
            assert self.states[row, 1] == sequence.state
            own = self.states[row, 0] == sequence.state
            assert own or sequence.fed == 0 or sequence.group.search is not None


def _table(entries: list[tuple[int, ...]], width: int) -> Int32:
    return np.array(entries, dtype=np.int32).reshape(-1, width)
