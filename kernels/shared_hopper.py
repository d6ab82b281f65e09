"""The shared phase on Hopper processors, by warps that have roles.

One warp group fetches tiles of keys and values, item after item; two others each attend to them
with half of an item's lines. Nothing but the tiles binds these to each other: the softmax of one
runs beside the matrix products of the other, and of its own tile before (FlashAttention-3, sections
3.1 and 3.2), and an item's first keys come while the last one's results are written. Triton's own
language keeps all warps of a program in step, so this is written in Gluon, which Triton brings too.
The sums are those of `shared.py`, in the same order, but that few tiles are looked through for
their largest scores (`_MOST`), and that sums are seldom multiplied (`_SLACK`).
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sharegen.kernels.attention_plan import SEGMENT_FIELDS, AttentionPlan
from sharegen.kernels.items import next_item
from sharegen.kernels.online_softmax import LOG2E, finish, weights
from sharegen.kernels.roles import (
    PANEL,
    in_shared_memory,
    is_hopper,
    leave,
    next_stage,
    scaled,
    scores_of,
)
from sharegen.kernels.tile_copy import block_descriptor, descriptor
from sharegen.kernels.tiles import padded

_SEGMENT_FIELDS = gl.constexpr(SEGMENT_FIELDS)

# In log2: m stays as it is until a score is so far above it. Then sums are rarely multiplied, and p
# is up to 2^8, which in 16 bits is as precise as up to 1 (FlashAttention-4 does so).
_SLACK = gl.constexpr(8.0)

# In bfloat16, which has float32's exponents, whole tiles that all rows see do without: m is what
# the first tile of an item made it. Only where a sum grows beyond this (a score is some 60 above
# all of that tile, in log2) do a program's items come again, and every tile is looked through for
# its largest scores. Values below 2^65 keep what is summed finite until then.
_MOST = gl.constexpr(2.0**60)

# Where a line's bits are not to depend on the others', all its tiles keep the m of the first one
# that it sees, also those that others do not see; and what comes again is written for those lines
# alone whose own sums have grown so far.
_NEVER = gl.constexpr(1e30)  # a slack that no score exceeds, but from -inf

# Registers of a thread: as many as leave the suffix phase room on the same processor when the
# kernel begins, and what those that attend take over from those that fetch.
_REGISTERS = 128
_ATTENDING = 176


def suits_hopper(plan: AttentionPlan, device: torch.device) -> bool:
    """Whether the kernel is for such heads, tiles and processors.

    Not in float16 where bits are to be the same. In one job two samples parted there that lay next
    but one to each other among 1,024 rows; why is not known, and this kernel alone does something
    else in float16 than in bfloat16 (`_MOST`).
    """
    shape, tile = plan.shape, plan.tile
    return (
        not (plan.deterministic and shape.dtype == torch.float16)
        and is_hopper(device)
        and (tile.lines, tile.keys) == (128, 64)
        and shape.dtype.itemsize == 2
        and shape.key_size == shape.value_size
        and padded(shape.key_size) in (64, 128)
        and shape.block_size in (8, 16, 32, 64)  # a tile is so many whole blocks
    )


@gluon.constexpr_function
def _largest_layout():
    return gl.BlockedLayout([1], [32], [4], [0])


@gluon.jit
def _tokens(segments_ptr, segment):
    """(first token, end of the tokens, block, whether blocks follow each other) of a segment."""
    segment_ptr = segments_ptr + segment * _SEGMENT_FIELDS
    begin, end = gl.load(segment_ptr + 2), gl.load(segment_ptr + 3)
    return begin, end, gl.load(segment_ptr + 5), gl.load(segment_ptr + 6)


@gluon.jit
def _fetch_items(
    k_desc, v_desc, k_block_desc, v_block_desc, k_ring, v_ring, full, empty, stage, phase,
    counts_ptr, items_ptr, segments_ptr, blocks_ptr,
    NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr,
):  # fmt: skip
    """Fills the rings [STAGES, BLOCK_N, BLOCK_D]: whole tiles of consecutive slots by one copy,
    others block by block.

    Of a block whose first r slots are the node's come zeros and, at its end, these: what lies
    before a block or behind it reads as 0, so whatever comes after a node is never read, not even
    a NaN.
    """
    dtype: gl.constexpr = k_ring.dtype
    STAGES: gl.constexpr = k_ring.shape[0]
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    BLOCK_D: gl.constexpr = k_ring.shape[2]
    PIECES: gl.constexpr = BLOCK_N // BLOCK_SIZE
    PANELS: gl.constexpr = BLOCK_D // PANEL
    TILE: gl.constexpr = [STAGES, 1, BLOCK_N, BLOCK_D]
    PIECE: gl.constexpr = [STAGES * PANELS * PIECES, 1, 1, BLOCK_SIZE, PANEL]
    k_tiles = k_ring._reinterpret(dtype, TILE, k_desc.layout)
    v_tiles = v_ring._reinterpret(dtype, TILE, v_desc.layout)
    k_pieces = k_ring._reinterpret(dtype, PIECE, k_block_desc.layout)
    v_pieces = v_ring._reinterpret(dtype, PIECE, v_block_desc.layout)
    num_work = gl.load(counts_ptr) * NUM_KV_HEADS
    kv_head, _, _, first_segment, last_segment = next_item(
        items_ptr, gl.program_id(0), num_work, NUM_KV_HEADS
    )
    begin, end, first_block, in_a_run = _tokens(segments_ptr, first_segment)
    for work in range(gl.program_id(0), num_work, gl.num_programs(0)):
        next_head, _, _, next_first, next_last = next_item(
            items_ptr, work + gl.num_programs(0), num_work, NUM_KV_HEADS
        )
        for segment in range(first_segment, last_segment):
            following = gl.where(segment + 1 < last_segment, segment + 1, next_first)
            next_begin, next_end, next_block, next_in_a_run = _tokens(segments_ptr, following)
            # Not from `begin` on: the compiler would take the first segment's for all the others'.
            for behind in range(0, end - begin, BLOCK_N):
                n = begin + behind
                bar = full.index(stage)
                mbarrier.wait(empty.index(stage), phase)
                mbarrier.expect(bar, 4 * BLOCK_N * BLOCK_D)  # bytes of both
                if (in_a_run != 0) & (n + BLOCK_N <= end):
                    at = [kv_head, first_block * BLOCK_SIZE + n, 0]
                    tma.async_copy_global_to_shared(k_desc, at, bar, k_tiles.index(stage))
                    tma.async_copy_global_to_shared(v_desc, at, bar, v_tiles.index(stage))
                else:
                    for i in range(PIECES):
                        real = gl.minimum(end - n - i * BLOCK_SIZE, BLOCK_SIZE)
                        block = first_block + n // BLOCK_SIZE + i
                        if in_a_run == 0:
                            block = gl.load(blocks_ptr + block, mask=real > 0, other=0)
                        offset = gl.where(real > 0, real - BLOCK_SIZE, BLOCK_SIZE)
                        for panel in gl.static_range(PANELS):
                            piece = (stage * PANELS + panel) * PIECES + i
                            at = [kv_head, block, offset, panel * PANEL]
                            k, v = k_pieces.index(piece), v_pieces.index(piece)
                            tma.async_copy_global_to_shared(k_block_desc, at, bar, k)
                            tma.async_copy_global_to_shared(v_block_desc, at, bar, v)
                stage, phase = next_stage(stage, phase, STAGES)
            begin, end, first_block, in_a_run = next_begin, next_end, next_block, next_in_a_run
        kv_head, first_segment, last_segment = next_head, next_first, next_last
    return stage, phase


@gluon.jit
def _fetch(
    k_desc, v_desc, k_block_desc, v_block_desc, k_ring, v_ring, full, empty, told, largest,
    counts_ptr, items_ptr, segments_ptr, blocks_ptr,
    NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr, FIXED: gl.constexpr,
):  # fmt: skip
    """Fetch all items, and again where a sum grows beyond `_MOST`."""
    stage = 0
    phase = 1  # the rings are empty
    stage, phase = _fetch_items(
        k_desc, v_desc, k_block_desc, v_block_desc, k_ring, v_ring, full, empty, stage, phase,
        counts_ptr, items_ptr, segments_ptr, blocks_ptr, NUM_KV_HEADS, BLOCK_SIZE,
    )  # fmt: skip
    if FIXED and _come_again(told, largest):
        _fetch_items(
            k_desc, v_desc, k_block_desc, v_block_desc, k_ring, v_ring, full, empty, stage, phase,
            counts_ptr, items_ptr, segments_ptr, blocks_ptr, NUM_KV_HEADS, BLOCK_SIZE,
        )  # fmt: skip
    leave()


@gluon.jit
def _come_again(told, largest):
    """Whether a sum has grown beyond `_MOST`.

    largest: [2] the sums of those that attend, when both have told.
    """
    mbarrier.wait(told, 0)
    return gl.max(largest.load(_largest_layout()), 0) > _MOST


@gluon.jit
def _softmax(
    m, s, n, end, band_row, row_begin, row_end, factor,
    BLOCK_SIZE: gl.constexpr, s_layout: gl.constexpr, MASKED: gl.constexpr,
    SLACK: gl.constexpr = _SLACK,
):  # fmt: skip
    """(p, what becomes of sums before, m) with the tile's scores s * factor.

    MASKED: not all rows are under the node, or the tile is no whole one: `_fetch_items`.
    """
    BLOCK_N: gl.constexpr = s.shape[1]
    if MASKED:
        o_n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, s_layout))
        real = gl.minimum(end - n - o_n // BLOCK_SIZE * BLOCK_SIZE, BLOCK_SIZE)
        under = (band_row >= row_begin) & (band_row < row_end)
        seen = (o_n % BLOCK_SIZE >= BLOCK_SIZE - real)[None, :] & under[:, None]
        s = gl.where(seen, s, float("-inf"))
    return weights(m, s, factor, MASKED, SLACK)


@gluon.jit
def _segment(segments_ptr, segment):
    """(first row, end of the rows, first token, end of the tokens) of a segment."""
    segment_ptr = segments_ptr + segment * _SEGMENT_FIELDS
    row_begin = gl.load(segment_ptr)
    row_end = gl.load(segment_ptr + 1)
    return row_begin, row_end, gl.load(segment_ptr + 2), gl.load(segment_ptr + 3)


@gluon.jit
def _rows(order_ptr, first_row, num_rows, in_band):
    """The rows of a band's lines, 0 where there is none."""
    return gl.load(order_ptr + first_row + in_band, mask=in_band < num_rows - first_row, other=0)


@gluon.jit
def _sums(p):
    """What each of the four threads of a line adds up of p [LINES, BLOCK_N]: [LINES, 4]."""
    mine = p.reshape([p.shape[0], p.shape[1] // 8, 4, 2])
    return gl.sum(gl.sum(mine, 3), 1)


@gluon.jit
def _attend_tiles(
    acc, m, total, p, q, k_ring, v_ring, full, empty, stage, phase, before,
    begin, until, end, band_row, row_begin, row_end, factor,
    BLOCK_SIZE: gl.constexpr, s_layout: gl.constexpr, o_layout: gl.constexpr,
    MASKED: gl.constexpr, FIXED: gl.constexpr, SLACK: gl.constexpr,
):  # fmt: skip
    """The state after the tiles from `begin` to `until` of a node.

    p: of the tile in stage `before`, whose values are still to be added to acc. They are while the
    softmax of the next one is computed. FIXED: m stays as it is, see `_MOST`.
    """
    STAGES: gl.constexpr = k_ring.shape[0]
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    for n in range(begin, until, BLOCK_N):
        s = scores_of(q, k_ring, full, stage, phase, s_layout)
        acc = warpgroup_mma(p, v_ring.index(before), acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])
        if FIXED:
            p_new = gl.exp2(s * factor - m[:, None])
            total += _sums(p_new)
        else:
            p_new, decay, m = _softmax(
                m,
                s,
                n,
                end,
                band_row,
                row_begin,
                row_end,
                factor,
                BLOCK_SIZE,
                s_layout,
                MASKED,
                SLACK,
            )
            of_total: gl.constexpr = gl.SliceLayout(1, total.type.layout)
            total = total * gl.convert_layout(decay, of_total)[:, None] + _sums(p_new)
        p_new = gl.convert_layout(p_new.to(p.dtype), gl.DotOperandLayout(0, o_layout, 2))
        acc, p = warpgroup_mma_wait(0, deps=[acc, p_new])
        mbarrier.arrive(empty.index(before), count=1)
        if not FIXED:
            acc = scaled(acc, gl.convert_layout(decay, gl.SliceLayout(1, o_layout)))
        before = stage
        stage, phase = next_stage(stage, phase, STAGES)
    return acc, m, total, p, stage, phase, before


@gluon.jit
def _attend_items(
    q_ptr, q_buffers, k_ring, v_ring, full, empty, stage, phase,
    counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr,
    out_ptr, lse_ptr, stride_qr, stride_qh, scale,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, SIZE: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, HALF: gl.constexpr, FIXED: gl.constexpr, OWN: gl.constexpr,
    AGAIN: gl.constexpr = False,
):  # fmt: skip
    """Attend from the lines of a band's first or second HALF, item after item.

    q_buffers: [2, LINES, BLOCK_D], where queries change their layout, and later the result.
    FIXED: see `_attend_tiles`. OWN: no line's bits are to depend on the others. AGAIN: only what
    the first pass has marked is written, by a lse that is infinite. Returns (stage, phase, the
    largest sums that were FIXED).
    """
    NUM_HEADS: gl.constexpr = NUM_KV_HEADS * GROUP
    dtype: gl.constexpr = k_ring.dtype
    STAGES: gl.constexpr = k_ring.shape[0]
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    BLOCK_D: gl.constexpr = k_ring.shape[2]
    LINES: gl.constexpr = q_buffers.shape[1]
    SLACK: gl.constexpr = _NEVER if FIXED and OWN else _SLACK
    ROWS: gl.constexpr = 2 * LINES // GROUP  # of a band
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    THREADS: gl.constexpr = BLOCK_D // 8  # of a line, 16 bytes each
    line_layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // THREADS, THREADS], [4, 1], [1, 0])
    q_buffer = q_buffers.index(HALF)
    o_m = gl.arange(0, LINES, gl.SliceLayout(1, line_layout)) + HALF * LINES
    o_d = gl.arange(0, BLOCK_D, gl.SliceLayout(0, line_layout))
    band_row = (gl.arange(0, LINES, gl.SliceLayout(1, s_layout)) + HALF * LINES) // GROUP
    factor = scale * LOG2E
    most = _sums(gl.zeros([LINES, BLOCK_N], gl.float32, s_layout))
    num_work = gl.load(counts_ptr) * NUM_KV_HEADS
    num_rows = gl.load(counts_ptr + 1)
    kv_head, first_row, ordinal, first_segment, last_segment = next_item(
        items_ptr, gl.program_id(0), num_work, NUM_KV_HEADS
    )
    row = _rows(order_ptr, first_row, num_rows, o_m // GROUP)
    row_begin, row_end, begin, end = _segment(segments_ptr, first_segment)
    for work in range(gl.program_id(0), num_work, gl.num_programs(0)):
        in_band = gl.minimum(ROWS, num_rows - first_row)
        alive = o_m // GROUP < in_band
        head = kv_head * GROUP + o_m % GROUP
        written = alive[:, None] & (o_d < SIZE)[None, :]
        p_q = q_ptr + (row.to(gl.int64) * stride_qr + head * stride_qh)[:, None] + o_d[None, :]
        queries = gl.load(p_q, mask=written, other=0.0)
        partial = gl.load(partial_start_ptr + row, mask=alive, other=0) + ordinal
        # Memory is slow to answer, so the next item is asked for while this one is attended to.
        next_head, next_first_row, next_ordinal, next_first, next_last = next_item(
            items_ptr, work + gl.num_programs(0), num_work, NUM_KV_HEADS
        )
        q_buffer.store(queries)
        q = q_buffer.load(gl.DotOperandLayout(0, s_layout, 2))

        first_end = row_end
        if row_end >= in_band:  # lines of no row see it, too, or their sums would have no bound
            first_end += 2 * LINES
        s = scores_of(q, k_ring, full, stage, phase, s_layout)
        s = warpgroup_mma_wait(0, deps=[s])
        p, _, m = _softmax(
            gl.full([LINES], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout)),
            s, begin, end, band_row, row_begin, first_end, factor, BLOCK_SIZE, s_layout, True,
        )  # fmt: skip
        total = _sums(p)
        p = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, o_layout, 2))
        acc = gl.zeros([LINES, BLOCK_D], gl.float32, o_layout)
        before = stage + 0  # a name of its own, or the compiler takes the two for one in loops
        stage, phase = next_stage(stage, phase, STAGES)
        begin += BLOCK_N
        for segment in range(first_segment, last_segment):
            following = gl.where(segment + 1 < last_segment, segment + 1, next_first)
            next_row_begin, next_row_end, next_begin, next_end = _segment(segments_ptr, following)
            whole = begin  # up to here in whole tiles that all rows see
            if (row_begin <= 0) & (row_end >= in_band):
                whole += gl.maximum(end - begin, 0) // BLOCK_N * BLOCK_N
            acc, m, total, p, stage, phase, before = _attend_tiles(
                acc, m, total, p, q, k_ring, v_ring, full, empty, stage, phase, before,
                begin, whole, end, band_row, row_begin, row_end, factor,
                BLOCK_SIZE, s_layout, o_layout, False, FIXED, SLACK,
            )  # fmt: skip
            if FIXED and not OWN:
                most = gl.maximum(most, total)
            acc, m, total, p, stage, phase, before = _attend_tiles(
                acc, m, total, p, q, k_ring, v_ring, full, empty, stage, phase, before,
                whole, end, end, band_row, row_begin, row_end, factor,
                BLOCK_SIZE, s_layout, o_layout, True, False, SLACK,
            )  # fmt: skip
            row_begin, row_end, begin, end = next_row_begin, next_row_end, next_begin, next_end
        row = _rows(order_ptr, next_first_row, num_rows, o_m // GROUP)
        acc = warpgroup_mma(p, v_ring.index(before), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(before), count=1)

        if FIXED and OWN:
            most = gl.maximum(most, total)
            grown = gl.convert_layout(gl.max(total, 1), gl.SliceLayout(1, line_layout)) > _MOST
        m = gl.convert_layout(m, gl.SliceLayout(1, o_layout))
        total = gl.convert_layout(gl.sum(total, 1), gl.SliceLayout(1, o_layout))
        out, lse = finish(acc, m, total)
        q_buffer.store(out.to(dtype))
        o_partial = partial.to(gl.int64) * NUM_HEADS + head
        if AGAIN and OWN:
            marked = gl.load(lse_ptr + o_partial, mask=alive, other=0.0) == float("inf")
            alive = alive & marked
            written = written & marked[:, None]
        p_out = out_ptr + (o_partial * SIZE)[:, None] + o_d[None, :]
        gl.store(p_out, q_buffer.load(line_layout), mask=written)
        lse = gl.convert_layout(lse, gl.SliceLayout(1, line_layout))
        if FIXED and OWN:
            lse = gl.where(grown, float("inf"), lse)
        gl.store(lse_ptr + o_partial, lse, mask=alive)
        kv_head, first_row, ordinal = next_head, next_first_row, next_ordinal
        first_segment, last_segment = next_first, next_last
    return stage, phase, most


@gluon.jit
def _attend(
    q_ptr, q_buffers, k_ring, v_ring, full, empty, told, largest,
    counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr,
    out_ptr, lse_ptr, stride_qr, stride_qh, scale,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, SIZE: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, HALF: gl.constexpr, FIXED: gl.constexpr, OWN: gl.constexpr,
):  # fmt: skip
    """Attend to all items, and again where a sum grows beyond `_MOST`."""
    stage = 0
    phase = 0
    stage, phase, most = _attend_items(
        q_ptr, q_buffers, k_ring, v_ring, full, empty, stage, phase,
        counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr,
        out_ptr, lse_ptr, stride_qr, stride_qh, scale,
        NUM_KV_HEADS, GROUP, SIZE, BLOCK_SIZE, HALF, FIXED, OWN,
    )  # fmt: skip
    if FIXED:
        layout: gl.constexpr = _largest_layout()
        mine = gl.full([1], 0.0, gl.float32, layout) + gl.max(gl.max(most, 1), 0)
        largest.slice(HALF, 1).store(mine)
        mbarrier.arrive(told, count=1)
        if _come_again(told, largest):
            _attend_items(
                q_ptr, q_buffers, k_ring, v_ring, full, empty, stage, phase,
                counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr,
                out_ptr, lse_ptr, stride_qr, stride_qh, scale,
                NUM_KV_HEADS, GROUP, SIZE, BLOCK_SIZE, HALF, False, OWN, True,
            )  # fmt: skip
    leave()


@gluon.jit
def _hopper_shared_kernel(
    q_ptr, k_desc, v_desc, k_block_desc, v_block_desc,
    counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr, blocks_ptr,
    out_ptr, lse_ptr, stride_qr, stride_qh, scale,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, SIZE: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, LINES: gl.constexpr, BLOCK_N: gl.constexpr,
    BLOCK_D: gl.constexpr, STAGES: gl.constexpr, ATTENDING: gl.constexpr, OWN: gl.constexpr,
):  # fmt: skip
    """LINES: of a warp group, half a band. ATTENDING: registers of a thread of these. OWN: see
    `_attend_items`.
    """
    dtype: gl.constexpr = k_desc.dtype
    FIXED: gl.constexpr = dtype == gl.bfloat16
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_D], layout)
    v_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_D], layout)
    q_buffers = gl.allocate_shared_memory(dtype, [2, LINES, BLOCK_D], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    told = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    largest = gl.allocate_shared_memory(gl.float32, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    mbarrier.init(told, count=2)
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (_fetch, (
                k_desc, v_desc, k_block_desc, v_block_desc, k_ring, v_ring, full, empty,
                told, largest,
                counts_ptr, items_ptr, segments_ptr, blocks_ptr, NUM_KV_HEADS, BLOCK_SIZE, FIXED,
            )),
            (_attend, (
                q_ptr, q_buffers, k_ring, v_ring, full, empty, told, largest,
                counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr,
                out_ptr, lse_ptr, stride_qr, stride_qh, scale,
                NUM_KV_HEADS, GROUP, SIZE, BLOCK_SIZE, 0, FIXED, OWN,
            )),
            (_attend, (
                q_ptr, q_buffers, k_ring, v_ring, full, empty, told, largest,
                counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr,
                out_ptr, lse_ptr, stride_qr, stride_qh, scale,
                NUM_KV_HEADS, GROUP, SIZE, BLOCK_SIZE, 1, FIXED, OWN,
            )),
        ],
        [4, 4], [ATTENDING, ATTENDING],
    )  # fmt: skip


def launch_on_hopper(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, plan: AttentionPlan, scale: float
) -> None:
    """Write the partials of all rows over all shared nodes, none of which is in FP8, without
    limits.
    """
    shape, tile = plan.shape, plan.tile
    size = padded(shape.key_size)
    tiles = [descriptor(cache, tile.keys) for cache in (k_cache, v_cache)]
    blocks = [block_descriptor(cache, shape.block_size) for cache in (k_cache, v_cache)]
    _hopper_shared_kernel[(plan.num_programs,)](
        q, *(in_shared_memory(found, size) for found in tiles),
        *(in_shared_memory(found, PANEL.value) for found in blocks),
        plan.counts, plan.order, plan.partial_start, plan.items, plan.segments, plan.blocks,
        plan.partial_out, plan.partial_lse, q.stride(0), q.stride(1), scale,
        NUM_KV_HEADS=shape.num_kv_heads, GROUP=shape.group, SIZE=shape.key_size,
        BLOCK_SIZE=shape.block_size, LINES=tile.lines // 2, BLOCK_N=tile.keys,
        BLOCK_D=size, STAGES=tile.num_stages, ATTENDING=_ATTENDING, OWN=plan.deterministic,
        num_warps=4, maxnreg=_REGISTERS,
    )  # fmt: skip
