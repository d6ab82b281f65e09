"""The work list of the shared phase and the merge list of every row, as arrays on the device.

Built with numpy when the tree changes, sent in one copy into buffers whose addresses do not change,
so that a captured CUDA graph finds the new plan in its place. Counts lie on the device, too.

An *item* is (node, tile of its rows, range of its tokens); a program computes it for one KV head.
Long nodes are cut into several ranges when there would be too few items to fill the device.
A row's partials lie side by side: those of row r are `partial_start[r]` to `partial_start[r + 1]`,
and the item of a node writes at `partial_start[r] + ordinal`, where ordinal counts the partials of
the nodes above it. So neither side needs a list of slots (FlashInfer keeps one, in CSR form).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch

from sharegen.kernels.layout import Int32, SharedLayout
from sharegen.kernels.tiles import AttentionShape, Tile, shared_tile

ITEM_FIELDS = 8  # first row in order, rows, begin, end, node position, block, contiguous, ordinal
_ALIGNMENT = 4  # int32s; Triton compiles faster loads for arrays that start at 16 bytes

# The cost model of the split, in units of one key against one tile of 64 lines.
_ITEM_COST = 96  # to start an item and write its partials
_MERGE_COST = 0.4  # of the whole device, to read back one row's partial of 4,096 values
_SPLITS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])


@dataclass(frozen=True)
class WorkList:
    """What a layout asks for: items [num_items, ITEM_FIELDS] and partial_start [num_rows + 1]."""

    items: Int32
    partial_start: Int32


class Plan:
    """One batch's shared work on the device. Update it between steps, on the stream of the steps.

    max_rows: rows (captured batch size, or tokens of a prefill) that the buffers have room for.
    num_programs: programs of the shared phase; they take the items in turn.
    Partials have the dtype of the values (each is an average of values, rounded as the output will
    be: half the bytes of float32); their log-sum-exp is float32.
    """

    def __init__(
        self,
        shape: AttentionShape,
        max_rows: int,
        device: torch.device,
        *,
        tile: Tile | None = None,
        num_programs: int | None = None,
    ) -> None:
        self.shape, self.device, self.max_rows = shape, device, max_rows
        self.tile = tile or shared_tile(shape)
        self.slots = _resident_programs(device, self.tile)
        self.num_programs = num_programs or self.slots
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.generation = 0
        self._room_items, self._room_blocks, self._room_partials = 256, 256, 3 * max_rows
        self._allocate()

    def update(self, layout: SharedLayout) -> bool:
        """Send the plan of `layout`; true when buffers had to grow: graphs are to be captured anew.

        Rows that `layout.order` does not name get no partials.
        """
        work = work_list(layout, self.shape, self.max_rows, self.tile, self.slots)
        scattered = not layout.contiguous.all()
        num_items, num_blocks = len(work.items), len(layout.blocks) if scattered else 0
        grown = self._grow(num_items, num_blocks, int(work.partial_start[-1]))
        staging = self._staging.next()
        staging[0] = num_items
        self._part(staging, 1)[: len(work.partial_start)] = work.partial_start
        self._part(staging, 2)[: len(layout.order)] = layout.order
        self._part(staging, 3)[: work.items.size] = work.items.ravel()
        if scattered:
            self._part(staging, 4)[:num_blocks] = layout.blocks
        self._staging.send(self._buffer)
        return grown

    def check(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
        """Assert that the tensors are those that the plan was made for."""
        shape = self.shape
        assert q.shape[0] <= self.max_rows, "more rows than the plan has room for"
        assert q.shape[1:] == (shape.num_heads, shape.key_size), q.shape
        assert k_cache.shape[1:] == (shape.block_size, shape.num_kv_heads, shape.key_size)
        assert v_cache.shape[1:] == (shape.block_size, shape.num_kv_heads, shape.value_size)
        for tensor in (q, k_cache, v_cache):
            assert tensor.dtype == shape.dtype and tensor.stride(-1) == 1

    def _grow(self, num_items: int, num_blocks: int, num_partials: int) -> bool:
        asked = (num_items, num_blocks, num_partials)
        room = (self._room_items, self._room_blocks, self._room_partials)
        if all(a <= r for a, r in zip(asked, room, strict=True)):
            return False
        self._room_items, self._room_blocks, self._room_partials = (
            r if a <= r else max(a, r + r // 2) for a, r in zip(asked, room, strict=True)
        )
        self._allocate()
        self.generation += 1
        return True

    def _allocate(self) -> None:
        shape = self.shape
        sizes = [
            1, self.max_rows + 1, self.max_rows, self._room_items * ITEM_FIELDS, self._room_blocks,
        ]  # fmt: skip
        ends = np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes])
        self._spans = [slice(int(s), int(e)) for s, e in itertools.pairwise([0, *ends])]
        self._buffer = torch.zeros(int(ends[-1]), dtype=torch.int32, device=self.device)
        self._staging = _Staging(len(self._buffer), self.device)
        self.counts, self.partial_start, self.order, self.items, self.blocks = (
            self._buffer[span] for span in self._spans
        )
        partials = (self._room_partials, shape.num_heads)
        self.partial_out = torch.empty(
            *partials, shape.value_size, dtype=shape.dtype, device=self.device
        )
        self.partial_lse = torch.empty(partials, dtype=torch.float32, device=self.device)

    def _part(self, staging: Int32, index: int) -> Int32:
        return staging[self._spans[index]]


class _Staging:
    """Two host buffers in turn, so that one can be written while the other is on its way."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._tensors = [
            torch.zeros(size, dtype=torch.int32, pin_memory=self._cuda) for _ in range(2)
        ]
        self._arrays = [tensor.numpy() for tensor in self._tensors]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0

    def next(self) -> Int32:
        self._turn = 1 - self._turn
        event = self._sent[self._turn]
        if event is not None:
            event.synchronize()  # the copy of two updates ago: done long since
        return self._arrays[self._turn]

    def send(self, buffer: torch.Tensor) -> None:
        buffer.copy_(self._tensors[self._turn], non_blocking=True)
        if self._cuda:
            event = torch.cuda.Event()
            event.record()
            self._sent[self._turn] = event


def work_list(
    layout: SharedLayout, shape: AttentionShape, max_rows: int, tile: Tile, slots: int
) -> WorkList:
    """The items of all nodes, the longest first, and where each row's partials lie.

    slots: programs that run at the same time.
    """
    num_rows = layout.row_end - layout.row_start
    rows_per_tile = tile.lines // shape.group
    assert rows_per_tile > 0, "the tile is smaller than one row's query heads"
    num_tiles = -(-num_rows // rows_per_tile)
    splits, length = split_nodes(layout.length, num_tiles, num_rows, shape, tile, slots)
    ordinal, partial_start = _partials(layout, splits, max_rows)

    per_node = num_tiles * splits
    node = np.repeat(np.arange(layout.num_nodes), per_node)
    within = np.arange(len(node)) - np.repeat(np.cumsum(per_node) - per_node, per_node)
    i_tile, i_split = np.divmod(within, splits[node])
    begin = i_split * length[node]
    end = np.minimum(begin + length[node], layout.length[node])
    first_row = i_tile * rows_per_tile
    block = np.where(
        layout.contiguous,
        layout.blocks[np.minimum(layout.block_start[:-1], len(layout.blocks) - 1)],
        layout.block_start[:-1],
    )
    items = np.empty((len(node), ITEM_FIELDS), dtype=np.int32)
    items[:, 0] = layout.row_start[node] + first_row
    items[:, 1] = np.minimum(num_rows[node] - first_row, rows_per_tile)
    items[:, 2] = begin
    items[:, 3] = end
    items[:, 4] = layout.position[node]
    items[:, 5] = block[node]
    items[:, 6] = layout.contiguous[node]
    items[:, 7] = ordinal[node] + i_split
    longest_first = np.argsort(begin - end, kind="stable")
    return WorkList(items[longest_first], partial_start)


def split_nodes(
    lengths: Int32, num_tiles: Int32, num_rows: Int32, shape: AttentionShape, tile: Tile, slots: int
) -> tuple[Int32, Int32]:
    """Into how many ranges to cut each node, and the tokens of a range (a multiple of the tile's).

    All numbers of cuts of the longest node are tried against the time that the items would take:
    the average load of a slot or the waves that the longest items need, and the merging of what
    they leave behind.
    """
    if not len(lengths):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    keys = tile.keys
    target = np.maximum(-(-int(lengths.max()) // _SPLITS), 2 * keys)[:, None]  # [tries, 1]
    splits = -(-lengths[None, :] // target)
    length = -(-lengths[None, :] // (splits * keys)) * keys
    splits = -(-lengths[None, :] // length)
    cost = length + _ITEM_COST
    items = num_tiles * splits * shape.num_kv_heads
    longest = cost.max(axis=1)
    waves = -(-np.where(2 * cost > longest[:, None], items, 0).sum(axis=1) // slots)
    time = np.maximum((items * cost).sum(axis=1) / slots, waves * longest)
    values = shape.num_heads * shape.value_size / 4096
    time = time + _MERGE_COST * values * (num_rows * splits).sum(axis=1)
    best = int(time.argmin())
    return splits[best].astype(np.int32), length[best].astype(np.int32)


def _partials(layout: SharedLayout, splits: Int32, max_rows: int) -> tuple[Int32, Int32]:
    """ordinal [num_nodes]: partials of a row before the node's; partial_start [max_rows + 1].

    Nodes nest, so the nodes above one are those that come before it in a walk from the root and
    end after its first row.
    """
    depth = np.zeros(len(layout.order) + 1, dtype=np.int64)
    np.add.at(depth, layout.row_start, splits)
    np.subtract.at(depth, layout.row_end, splits)
    count = np.zeros(max_rows, dtype=np.int32)
    count[layout.order] = np.cumsum(depth)[:-1]
    partial_start = np.zeros(max_rows + 1, dtype=np.int32)
    np.cumsum(count, out=partial_start[1:])

    walk = np.lexsort((np.arange(layout.num_nodes), -layout.row_end, layout.row_start))
    before = np.cumsum(splits[walk]) - splits[walk]
    by_end = np.argsort(layout.row_end, kind="stable")
    ended = np.concatenate([[0], np.cumsum(splits[by_end])])
    ends = np.searchsorted(layout.row_end[by_end], layout.row_start[walk], side="right")
    ordinal = np.empty(layout.num_nodes, dtype=np.int32)
    ordinal[walk] = before - ended[ends]
    return ordinal, partial_start


def _resident_programs(device: torch.device, tile: Tile) -> int:
    """Programs of the shared phase that the device holds at once."""
    if device.type != "cuda":
        return 8
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * (2 if tile.num_warps <= 4 else 1)
