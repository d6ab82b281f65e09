"""The work list of the shared phase and the merge list of every row, as arrays on the device.

Built with numpy when the tree changes, sent in one copy into buffers whose addresses do not change,
so that a captured CUDA graph finds the new plan in its place. Counts lie on the device, too.

The rows in tree order are cut into *bands*, as many rows as a tile holds. A band's context is
the nodes above its rows, one after the other: *segments* (node, range of its tokens, rows under
it). An *item* is a band and some of its segments; a program computes it for one KV head. Where
there are too few bands to fill the device, a band's context is cut into several items. A row's
partials lie side by side, one for each item of its band: those of row r are `partial_start[r]`
to `partial_start[r + 1]`. So a row has one partial however deep its tree is, unless contexts are
cut, and neither side needs a list of slots.

Items of one length that begin with the same keys are a *run*: programs take all items of a run for
one KV head before those for the next one, so that keys come from memory once for all bands.

Nodes that the cost model takes out of the shared phase are *unshared nodes* of each row under
them: what the row reads in the suffix phase besides its own blocks.

All that depends on the batch: how many rows there are decides the tile, the cuts and what is
unshared, and so in which order a row's numbers are added. A *deterministic* plan decides by what a
row alone has: one tile for all, cuts at fixed positions of its context, and unshared is what the
job's tree gives to one sample alone. Its partials follow each other in the order of positions, and
those that a row's neighbours have and it has not are empty, which changes no bit of a merge.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sharegen.kernels.cost import CostModel
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.layout import Int32, SharedLayout
from sharegen.kernels.tiles import (
    AttentionShape,
    Tile,
    are_many,
    beside_tile,
    many_tile,
    programs_with_room,
    resident_programs,
    shared_memory_limit,
    shared_tile,
)

# first row in order, ordinal of its partial, first segment, end of its segments, first item and
# number of items of its run
ITEM_FIELDS = 6
SEGMENT_FIELDS = 8  # first row and end in the band, begin, end, position, block, contiguous, fp8
UNSHARED_FIELDS = 4  # tokens, position, block, whether contiguous + 2 if fp8
_ALIGNMENT = 4  # int32s; Triton compiles faster loads for arrays that start at 16 bytes

# The cost model of the split, in units of one tile of 64 keys and 64 lines.
_ITEM_COST = 2.5  # to start an item and write its partials
_MERGE_COST = 0.006  # of the whole device, to read back one row's partial of 4,096 values
_SPLITS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])

CUTS = (1024,)
CUT = 4096
"""Where the items of a deterministic plan begin, in tokens of a row's context: at these places, and
then at every so many tokens. Few rows below a prompt of usual length fill more of the device so,
and many rows below a long document have few partials each."""

OWN_CUT = 1024
OWN_PARTS = 4
"""Own tokens of a row that a program reads in a deterministic plan, and programs of a row at most,
of which the last one reads what is left."""

# Shared tokens of a row, from which the shared phase lasts so long beside the suffixes that it
# should run at its own best speed, and up to which it should leave them room. Between the two
# nothing changes: another tile means to capture graphs anew.
_LONG, _SHORT = 4096, 3072

_Int = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WorkList:
    """What a layout asks of the two phases.

    Args:
        items: [num_items, ITEM_FIELDS], the longest first, run after run.
        segments: [num_segments, SEGMENT_FIELDS], what the items refer to.
        partial_start: [max_rows + 1]; row r has the partials from partial_start[r] to
            partial_start[r + 1].
        unshared_nodes: [num_unshared, UNSHARED_FIELDS].
        unshared_start: [max_rows + 1]; row r reads the unshared nodes from unshared_start[r] to
            unshared_start[r + 1] for itself alone.
    """

    items: Int32
    segments: Int32
    partial_start: Int32
    unshared_nodes: Int32
    unshared_start: Int32


class AttentionPlan:
    """One batch's shared work on the device, updated between steps on the stream of the steps.

    Partials have the dtype of the values (each is an average of values, rounded as the output will
    be: half the bytes of float32); their log-sum-exp is float32.

    Args:
        shape: of the layers that the plan is for.
        max_rows: rows that the buffers have room for: a captured batch's, or a prefill's tokens.
        device: where the buffers lie.
        tile: of the shared phase; by default one for the rows and the length of what is shared.
        num_programs: programs of the shared phase, which take the items in turn; by default as
            many as the device holds at once, `slots`.
        costs: decides which nodes are shared reads; without it all are.
        fp8_suffixes: whether what is read per sequence is of 8 bits.
        deterministic: whether a row's bits depend on what is above it alone, not on the batch;
            then layouts say what is `alone`, where anything is to be unshared, and costs are not
            asked.
        arriving: whether rows come and go for long, as a server's do. Every number of rows then has
            one variant, whatever was shared before, and buffers that rarely grow: a graph that was
            captured for it serves ever after. It costs the two phases' fixed times where one would
            do.
    """

    def __init__(
        self,
        shape: AttentionShape,
        max_rows: int,
        device: torch.device,
        *,
        tile: Tile | None = None,
        num_programs: int | None = None,
        costs: CostModel | None = None,
        fp8_suffixes: bool = False,
        deterministic: bool = False,
        arriving: bool = False,
    ) -> None:
        self.shape, self.device, self.max_rows = shape, device, max_rows
        self.costs, self._fp8_suffixes = costs, fp8_suffixes
        self.deterministic, self._arriving = deterministic, arriving
        self.shared_memory = shared_memory_limit(device)
        if deterministic:
            tile = tile or many_tile(shape, self.shared_memory, long=True, fp8=fp8_suffixes)
        self._only_tile, self._only_programs = tile, num_programs
        self._long = self._many = False
        self._take(tile or beside_tile(shape, self.shared_memory))
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.generation = 0
        self.sharing = costs is None or arriving  # from the first node on that is worth it
        self.has_unshared = arriving
        self.fp8 = False  # from the first shared node of FP8 blocks on
        self.shared_levels: tuple[int, ...] = ()
        self._room: tuple[int, ...] = (256, 512, 256, 2 * max_rows, 2 * max_rows)
        if arriving:
            rows = max(256, max_rows)  # few rows' contexts are cut into many items
            self._room = (rows, 2 * rows, 64 * rows, 4 * rows, 4 * rows)
        self._allocate()
        self._whole = True  # the buffers are of one size, that of the room

    @property
    def variant(self) -> tuple[Tile, bool, bool, bool]:
        """Return what a captured graph holds of the plan beside its buffers."""
        return self.tile, self.sharing, self.has_unshared, self.fp8

    def update(self, layout: SharedLayout) -> None:
        """Make the plan of a layout and send it; rows that its order leaves out get no partials.

        Graphs that read the plan are to be captured anew when `generation` has grown (a buffer
        was too small), and there is one for each `variant`.
        """
        self._choose_tile(layout)
        unshared = np.zeros(len(layout.length), dtype=np.bool_)
        if self.deterministic:
            unshared = unshared if layout.alone is None else layout.alone
        elif self.costs is not None:
            unshared = self.costs.choose_unshared(
                layout, self.shape, self.tile, self.slots, self.sharing, self.has_unshared
            )
        self.shared_levels = layout.shared_levels(~unshared)
        # Once shared, always shared: for the last rows of a job no other graph is captured.
        self.sharing |= not unshared.all()
        self.has_unshared = self._arriving or bool(unshared.any())
        self.fp8 |= bool((layout.fp8 & ~unshared).any())
        slots = None if self.deterministic else self.slots
        work = work_list(layout, self.shape, self.max_rows, self.tile, slots, unshared)
        blocks = layout.blocks[:0] if layout.contiguous.all() else layout.blocks
        self._grow(
            len(work.items), len(work.segments), len(blocks), len(work.unshared_nodes),
            int(work.partial_start[-1]),
        )  # fmt: skip
        staging = self._staging.next()
        parts = (
            np.array([len(work.items), len(layout.order)]), work.partial_start, work.unshared_start,
            layout.order, work.items.ravel(), work.segments.ravel(), blocks,
            work.unshared_nodes.ravel(),
        )  # fmt: skip
        for span, part in zip(self._spans, parts, strict=True):
            staging[span][: len(part)] = part
        self._staging.send(self._buffer)

    def check(self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
        """Assert that the tensors are those that the plan was made for."""
        shape = self.shape
        assert q.shape[0] <= self.max_rows, "more rows than the plan has room for"
        assert q.shape[1:] == (shape.num_heads, shape.key_size), q.shape
        assert k_cache.shape[1:] == (shape.block_size, shape.num_kv_heads, shape.key_size)
        assert v_cache.shape[1:] == (shape.block_size, shape.num_kv_heads, shape.value_size)
        for tensor in (q, k_cache, v_cache):
            assert tensor.dtype == shape.dtype and tensor.stride(-1) == 1

    def check_fp8(self, fp8: FP8Blocks) -> None:
        """Assert that FP8 blocks are such as the plan was made for."""
        shape = self.shape
        size, heads = shape.block_size, shape.num_kv_heads
        assert fp8.keys.shape[1:] == (size, heads, shape.key_size)
        assert fp8.values.shape[1:] == (size, heads, shape.value_size)
        assert fp8.exponents.shape[1:] == (heads, 2, size) and fp8.exponents.is_contiguous()
        assert fp8.keys.stride(-1) == fp8.values.stride(-1) == 1

    def _choose_tile(self, layout: SharedLayout) -> None:
        """Set the tile by the rows and the shared tokens of an average one."""
        if self._only_tile is not None:
            return
        rows = layout.row_end - layout.row_start
        tokens = int((layout.length.astype(np.int64) * rows).sum())
        average = tokens / max(1, len(layout.order))
        if average > _LONG:
            self._long = True
        elif average < _SHORT:
            self._long = False
        # Once many, always many: for the last rows of a job no other graph is captured.
        is_kept = self._many and not self._arriving
        self._many = is_kept or are_many(len(layout.order), self.shape)
        if self._many:
            tile = many_tile(
                self.shape, self.shared_memory, long=self._long, fp8=self._fp8_suffixes
            )
        else:
            tile = (shared_tile if self._long else beside_tile)(self.shape, self.shared_memory)
        if tile != self.tile:
            self._take(tile)

    def _take(self, tile: Tile) -> None:
        self.tile = tile
        self.slots = resident_programs(self.device, tile)
        self.num_programs = self._only_programs or self.slots
        if self._only_programs is None and self.device.type == "cuda":  # who waits begins late
            room = programs_with_room(self.device, self.shape, tile)
            self.num_programs = min(self.slots, room)

    def _grow(self, *asked: int) -> None:
        if self._whole and all(a <= r for a, r in zip(asked, self._room, strict=True)):
            return
        self._room = tuple(
            r if a <= r else max(a, r + r // 2) for a, r in zip(asked, self._room, strict=True)
        )
        self._whole = False  # should memory run out half-way, the next update begins again
        self._allocate()
        self._whole = True
        self.generation += 1

    def _allocate(self) -> None:
        shape = self.shape
        items, segments, blocks, unshared_nodes, partials = self._room
        sizes = [
            2, self.max_rows + 1, self.max_rows + 1, self.max_rows, items * ITEM_FIELDS,
            segments * SEGMENT_FIELDS, blocks, unshared_nodes * UNSHARED_FIELDS,
        ]  # fmt: skip
        ends = np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes])
        self._spans = [slice(int(s), int(e)) for s, e in itertools.pairwise([0, *ends])]
        self._buffer = torch.zeros(int(ends[-1]), dtype=torch.int32, device=self.device)
        self._staging = Staging(len(self._buffer), self.device)
        (
            self.counts, self.partial_start, self.unshared_start, self.order, self.items,
            self.segments, self.blocks, self.unshared_nodes,
        ) = (self._buffer[span] for span in self._spans)  # fmt: skip
        self.partial_out = torch.empty(
            partials, shape.num_heads, shape.value_size, dtype=shape.dtype, device=self.device
        )
        self.partial_lse = torch.empty(
            partials, shape.num_heads, dtype=torch.float32, device=self.device
        )


class Staging:
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
    layout: SharedLayout,
    shape: AttentionShape,
    max_rows: int,
    tile: Tile,
    slots: int | None,
    unshared: npt.NDArray[np.bool_],
) -> WorkList:
    """List the items of all bands, the longest first, and where each row's partials lie.

    Args:
        layout: the shared nodes of the batch.
        shape: of the layers.
        max_rows: rows that the lists of rows have room for.
        tile: of the shared phase.
        slots: programs that run at the same time, for which contexts are cut; None to cut them at
            fixed positions.
        unshared: [num_nodes] which nodes are read per sequence.
    """
    rows = tile.lines // shape.group
    assert rows > 0, "the tile is smaller than one row's query heads"
    num_bands = -(-len(layout.order) // rows)

    # What every band sees, in tiles: node after node, parents first.
    first_band = layout.row_start // rows
    bands = (layout.row_end - 1) // rows - first_band + 1
    node, within = _expand(np.where(unshared, 0, bands))
    band = first_band[node] + within
    by_band = np.argsort(band, kind="stable")
    node, band = node[by_band], band[by_band]
    tiles = -(-layout.length[node] // tile.keys)
    total = np.bincount(band, tiles, num_bands).astype(np.int64)
    start = np.cumsum(tiles) - tiles - (np.cumsum(total) - total)[band]

    # Cut where an item ends.
    if slots is None:
        start = layout.position[node].astype(np.int64) // tile.keys
        cuts = _cuts(int((start + tiles).max(initial=0)), tile)
        item, last = (np.searchsorted(cuts, at, "right") - 1 for at in (start, start + tiles - 1))
        splits = np.zeros(num_bands, dtype=np.int64)
        np.maximum.at(splits, band, last + 1)  # what is above a node is in its bands, too
    else:
        splits, length = split_bands(total, shape, tile, slots)
        length = length[band]
        item, last = start // length, (start + tiles - 1) // length
    segment, within = _expand(last - item + 1)
    node, band, start, tiles = node[segment], band[segment], start[segment], tiles[segment]
    item = item[segment] + within
    if slots is None:
        lower, upper = cuts[item], cuts[item + 1]
    else:
        length = length[segment]
        lower, upper = item * length, (item + 1) * length
    begin = np.maximum(lower - start, 0) * tile.keys
    end = np.minimum(upper - start, tiles) * tile.keys
    own = (np.cumsum(splits) - splits)[band] + item
    if slots is None:  # nodes beside each other have items in common
        by_item = np.argsort(own, kind="stable")
        node, band, own = node[by_item], band[by_item], own[by_item]
        begin, end = begin[by_item], end[by_item]
    segments = np.zeros((len(node), SEGMENT_FIELDS), dtype=np.int32)
    segments[:, 0] = layout.row_start[node] - band * rows
    segments[:, 1] = layout.row_end[node] - band * rows
    segments[:, 2] = begin
    segments[:, 3] = np.minimum(end, layout.length[node])
    segments[:, 4] = layout.position[node]
    segments[:, 5] = _first_block(layout)[node]
    segments[:, 6] = layout.contiguous[node]
    segments[:, 7] = layout.fp8[node]

    band, ordinal = _expand(splits)
    cost = np.bincount(own, segments[:, 3] - segments[:, 2], len(band))
    last = np.cumsum(np.bincount(own, minlength=len(band)))
    items = np.empty((len(band), ITEM_FIELDS), dtype=np.int32)
    items[:, 0] = band * rows
    items[:, 1] = ordinal
    items[1:, 2] = last[:-1]
    items[:1, 2] = 0
    items[:, 3] = last
    items = _in_runs(items, segments, cost)

    count = np.zeros(max_rows, dtype=np.int32)
    count[layout.order] = np.repeat(splits, rows)[: len(layout.order)]
    partial_start = np.zeros(max_rows + 1, dtype=np.int32)
    np.cumsum(count, out=partial_start[1:])
    return WorkList(items, segments, partial_start, *_unshared_nodes(layout, max_rows, unshared))


def _in_runs(items: Int32, segments: Int32, cost: npt.NDArray[Any]) -> Int32:
    """Put the items in order, the longest first and run after run, and write down their runs.

    cost: [num_items] tokens of each.
    """
    start = segments[items[:, 2]]
    alike = np.stack([start[:, 2], start[:, 5], -cost])  # token and block that it begins with
    order = np.lexsort(alike)
    items = items[order]
    differs = np.any(np.diff(alike[:, order]) != 0, axis=0)
    first = np.flatnonzero(np.concatenate([[True], differs]))
    count = np.diff(first, append=len(items))
    items[:, 4], items[:, 5] = np.repeat(first, count), np.repeat(count, count)
    return items


def _unshared_nodes(
    layout: SharedLayout, max_rows: int, unshared: npt.NDArray[np.bool_]
) -> tuple[Int32, Int32]:
    """List what each row reads for itself alone: (unshared_nodes, unshared_start) of the work
    list.
    """
    start = np.zeros(max_rows + 1, dtype=np.int32)
    if not unshared.any():
        return np.empty((0, UNSHARED_FIELDS), dtype=np.int32), start
    node, within = _expand(np.where(unshared, layout.row_end - layout.row_start, 0))
    row = layout.order[layout.row_start[node] + within]
    by_row = np.argsort(row, kind="stable")
    node = node[by_row]
    unshared_nodes = np.empty((len(node), UNSHARED_FIELDS), dtype=np.int32)
    unshared_nodes[:, 0] = layout.length[node]
    unshared_nodes[:, 1] = layout.position[node]
    unshared_nodes[:, 2] = _first_block(layout)[node]
    unshared_nodes[:, 3] = layout.contiguous[node] + 2 * layout.fp8[node]
    np.cumsum(np.bincount(row, minlength=max_rows), out=start[1:])
    return unshared_nodes, start


def _first_block(layout: SharedLayout) -> Int32:
    """[num_nodes] the first block of a contiguous node, or where a scattered one's are listed."""
    listed = layout.block_start[:-1]
    return np.where(layout.contiguous, layout.blocks[listed], listed)


def _expand(counts: npt.NDArray[np.integer]) -> tuple[_Int, _Int]:
    """Number every item of every count: [2, 0, 3] gives [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2]."""
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - (np.cumsum(counts) - counts)[index]


def _cuts(end: int, tile: Tile) -> _Int:
    """The tiles at which items begin, and the end of the last: `CUTS`, up to `end` tiles."""
    most = end * tile.keys
    further = range(CUTS[-1] + CUT, most + CUT, CUT)
    return np.array([0, *CUTS, *further], dtype=np.int64) // tile.keys


def split_bands(tiles: _Int, shape: AttentionShape, tile: Tile, slots: int) -> tuple[_Int, _Int]:
    """Return into how many items each band's context of `tiles` is cut, and the tiles of an item.

    All numbers of cuts of the longest context are tried against the time that the items would
    take: the average load of a slot or the waves that the longest items need, and the merging of
    what they leave behind.
    """
    target = np.maximum(-(-int(tiles.max(initial=1)) // _SPLITS), 2)[:, None]  # [tries, 1]
    splits = -(-tiles[None, :] // target)
    length = -(-tiles[None, :] // np.maximum(splits, 1))
    splits = -(-tiles[None, :] // np.maximum(length, 1))
    items = splits * shape.num_kv_heads
    cost = length + _ITEM_COST
    longest = cost.max(axis=1, initial=0)
    waves = -(-np.where(2 * cost > longest[:, None], items, 0).sum(axis=1) // slots)
    time = np.maximum((items * cost).sum(axis=1) / slots, waves * longest)
    values = shape.num_heads * shape.value_size / 4096 * (tile.lines // shape.group)
    time = time + _MERGE_COST * values * splits.sum(axis=1)
    best = int(time.argmin())
    return splits[best], np.maximum(length[best], 1)
