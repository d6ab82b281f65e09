"""The beginnings of prompts in `absolute.py` on Hopper processors, by warps that have roles.

An item is a band of lines under a node at position 0, over its whole tiles; its state (acc, m,
total) is left behind in float32. The roles are those of `shared_hopper.py`: one warp group fetches
tiles of keys and values, two others attend to them with half of an item's lines each. Products,
their order, and the softmax between are those of `absolute.py`, so the bits are, too.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sharegen.kernels.absolute_plan import FIELDS, LINES
from sharegen.kernels.online_softmax import LOG2E, weights
from sharegen.kernels.reference_absolute import TILE
from sharegen.kernels.roles import (
    PANEL,
    in_shared_memory,
    is_hopper,
    leave,
    next_stage,
    scaled,
    scores_of,
)
from sharegen.kernels.tile_copy import block_descriptor, copies_tiles, descriptor
from sharegen.kernels.tiles import num_processors, padded

_FIELDS = gl.constexpr(FIELDS)
_STAGES = 4

# Registers of a thread: when the kernel begins, and of those that attend, which take them over.
_REGISTERS = 168
_ATTENDING = 232


def suits_hopper(k_cache: torch.Tensor, v_cache: torch.Tensor, group: int) -> bool:
    """Whether the kernel is for such heads, caches and processors."""
    size = k_cache.shape[3]
    return (
        is_hopper(k_cache.device)
        and k_cache.dtype.itemsize == 2
        and size == v_cache.shape[3]
        and padded(size) in (64, 128)
        and k_cache.shape[1] in (8, 16, 32, 64)  # a tile is so many whole blocks
        and LINES % group == 0
        and copies_tiles(k_cache)
        and copies_tiles(v_cache)
    )


@gluon.jit
def _fetch(
    k_desc, v_desc, k_block_desc, v_block_desc, k_ring, v_ring, full, empty,
    count_ptr, items_ptr, slots_ptr, NUM_KV_HEADS: gl.constexpr, BLOCK_SIZE: gl.constexpr,
):  # fmt: skip
    """Fills the rings [STAGES, BLOCK_N, BLOCK_D]: tiles of consecutive slots by one copy each,
    others block by block.
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
    stage = 0
    phase = 1  # the rings are empty
    count = gl.load(count_ptr)
    for work in range(gl.program_id(0), count * NUM_KV_HEADS, gl.num_programs(0)):
        kv_head = work // count
        item_ptr = items_ptr + work % count * _FIELDS
        path_ptr = slots_ptr + gl.load(item_ptr + 2)
        end = gl.load(item_ptr + 4)
        in_a_run = gl.load(item_ptr + 5)
        for n in range(0, end, BLOCK_N):
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(bar, 4 * BLOCK_N * BLOCK_D)  # bytes of both
            if in_a_run != 0:
                at = [kv_head, gl.load(path_ptr) + n, 0]
                tma.async_copy_global_to_shared(k_desc, at, bar, k_tiles.index(stage))
                tma.async_copy_global_to_shared(v_desc, at, bar, v_tiles.index(stage))
            else:
                for i in range(PIECES):
                    block = gl.load(path_ptr + n + i * BLOCK_SIZE) // BLOCK_SIZE
                    for panel in gl.static_range(PANELS):
                        piece = (stage * PANELS + panel) * PIECES + i
                        at = [kv_head, block, 0, panel * PANEL]
                        k, v = k_pieces.index(piece), v_pieces.index(piece)
                        tma.async_copy_global_to_shared(k_block_desc, at, bar, k)
                        tma.async_copy_global_to_shared(v_block_desc, at, bar, v)
            stage, phase = next_stage(stage, phase, STAGES)
    leave()


@gluon.jit
def _attend(
    q_ptr, q_buffers, k_ring, v_ring, ones, full, empty, count_ptr, items_ptr, rows_ptr,
    acc_ptr, m_ptr, total_ptr, stride_qr, stride_qh, scale,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, SIZE: gl.constexpr, SLACK: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    """Attend from the lines of each item's first or second HALF.

    q_buffers: [2, LINES, BLOCK_D], where queries change their layout. ones: [8, BLOCK_N], by which
    weights are added up.
    """
    NUM_HEADS: gl.constexpr = NUM_KV_HEADS * GROUP
    dtype: gl.constexpr = k_ring.dtype
    STAGES: gl.constexpr = k_ring.shape[0]
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    BLOCK_D: gl.constexpr = k_ring.shape[2]
    LINES: gl.constexpr = q_buffers.shape[1]
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D, 16])
    t_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    THREADS: gl.constexpr = BLOCK_D // 8  # of a line, 16 bytes each
    line_layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // THREADS, THREADS], [4, 1], [1, 0])
    q_buffer = q_buffers.index(HALF)
    o_m = gl.arange(0, LINES, gl.SliceLayout(1, line_layout)) + HALF * LINES
    o_d = gl.arange(0, BLOCK_D, gl.SliceLayout(0, line_layout))
    of_acc = gl.arange(0, BLOCK_D, gl.SliceLayout(0, o_layout))
    factor = scale * LOG2E
    stage = 0
    phase = 0
    count = gl.load(count_ptr)
    for work in range(gl.program_id(0), count * NUM_KV_HEADS, gl.num_programs(0)):
        kv_head = work // count
        item_ptr = items_ptr + work % count * _FIELDS
        first_row = gl.load(item_ptr)
        end = gl.load(item_ptr + 4)
        alive = o_m < gl.load(item_ptr + 1) * GROUP
        row = gl.load(rows_ptr + first_row + o_m // GROUP, mask=alive, other=0)
        head = kv_head * GROUP + o_m % GROUP
        p_q = q_ptr + (row.to(gl.int64) * stride_qr + head * stride_qh)[:, None] + o_d[None, :]
        q_buffer.store(gl.load(p_q, mask=alive[:, None] & (o_d < SIZE)[None, :], other=0.0))
        q = q_buffer.load(gl.DotOperandLayout(0, s_layout, 2))

        s = scores_of(q, k_ring, full, stage, phase, s_layout)
        s = warpgroup_mma_wait(0, deps=[s])
        m = gl.full([LINES], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
        p, _, m = weights(m, s, factor, True, SLACK)
        p = gl.convert_layout(p.to(dtype), gl.DotOperandLayout(0, o_layout, 2))
        acc = gl.zeros([LINES, BLOCK_D], gl.float32, o_layout)
        total = gl.zeros([LINES, 8], gl.float32, t_layout)
        before = stage + 0  # a name of its own, or the compiler takes the two for one in loops
        stage, phase = next_stage(stage, phase, STAGES)
        for _n in range(BLOCK_N, end, BLOCK_N):
            s = scores_of(q, k_ring, full, stage, phase, s_layout)
            acc = warpgroup_mma(p, v_ring.index(before), acc, is_async=True)
            total = warpgroup_mma(p, ones.permute((1, 0)), total, is_async=True)
            s = warpgroup_mma_wait(2, deps=[s])
            p_new, decay, m = weights(m, s, factor, True, SLACK)
            p_new = gl.convert_layout(p_new.to(dtype), gl.DotOperandLayout(0, o_layout, 2))
            acc, total, p = warpgroup_mma_wait(0, deps=[acc, total, p_new])
            mbarrier.arrive(empty.index(before), count=1)
            acc = scaled(acc, gl.convert_layout(decay, gl.SliceLayout(1, o_layout)))
            total = scaled(total, gl.convert_layout(decay, gl.SliceLayout(1, t_layout)))
            before = stage
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma(p, v_ring.index(before), acc, is_async=True)
        total = warpgroup_mma(p, ones.permute((1, 0)), total, is_async=True)
        acc, total = warpgroup_mma_wait(0, deps=[acc, total])
        mbarrier.arrive(empty.index(before), count=1)

        line = row.to(gl.int64) * NUM_HEADS + head
        gl.store(m_ptr + line, gl.convert_layout(m, gl.SliceLayout(1, line_layout)), mask=alive)
        total = gl.convert_layout(gl.max(total, 1), gl.SliceLayout(1, line_layout))  # all are equal
        gl.store(total_ptr + line, total, mask=alive)
        line = gl.convert_layout(line, gl.SliceLayout(1, o_layout))
        written = gl.convert_layout(alive, gl.SliceLayout(1, o_layout))[:, None]
        p_acc = acc_ptr + (line * SIZE)[:, None] + of_acc[None, :]
        gl.store(p_acc, acc, mask=written & (of_acc < SIZE)[None, :])
    leave()


@gluon.jit
def _beginnings_kernel(
    q_ptr, k_desc, v_desc, k_block_desc, v_block_desc, count_ptr, items_ptr, rows_ptr, slots_ptr,
    acc_ptr, m_ptr, total_ptr, stride_qr, stride_qh, scale,
    NUM_KV_HEADS: gl.constexpr, GROUP: gl.constexpr, SIZE: gl.constexpr, SLACK: gl.constexpr,
    BLOCK_SIZE: gl.constexpr, LINES: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_D: gl.constexpr,
    STAGES: gl.constexpr, ATTENDING: gl.constexpr,
):  # fmt: skip
    """LINES: of a warp group, half a band. ATTENDING: registers of a thread of these."""
    dtype: gl.constexpr = k_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_D], layout)
    v_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_D], layout)
    q_buffers = gl.allocate_shared_memory(dtype, [2, LINES, BLOCK_D], layout)
    ones = gl.allocate_shared_memory(dtype, [8, BLOCK_N], layout)
    of_ones: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    ones.store(gl.full([8, BLOCK_N], 1.0, dtype, of_ones))
    fence_async_shared()
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (_fetch, (
                k_desc, v_desc, k_block_desc, v_block_desc, k_ring, v_ring, full, empty,
                count_ptr, items_ptr, slots_ptr, NUM_KV_HEADS, BLOCK_SIZE,
            )),
            (_attend, (
                q_ptr, q_buffers, k_ring, v_ring, ones, full, empty, count_ptr, items_ptr, rows_ptr,
                acc_ptr, m_ptr, total_ptr, stride_qr, stride_qh, scale,
                NUM_KV_HEADS, GROUP, SIZE, SLACK, 0,
            )),
            (_attend, (
                q_ptr, q_buffers, k_ring, v_ring, ones, full, empty, count_ptr, items_ptr, rows_ptr,
                acc_ptr, m_ptr, total_ptr, stride_qr, stride_qh, scale,
                NUM_KV_HEADS, GROUP, SIZE, SLACK, 1,
            )),
        ],
        [4, 4], [ATTENDING, ATTENDING],
    )  # fmt: skip


def launch_on_hopper(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, count: torch.Tensor,
    items: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor,
    state: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scale: float, slack: float,
) -> None:  # fmt: skip
    """Leave the state of the items' lines behind; rows, slots: of the plan."""
    _, block_size, kv_heads, key_size = k_cache.shape
    size = padded(key_size)
    tiles = [descriptor(cache, TILE) for cache in (k_cache, v_cache)]
    blocks = [block_descriptor(cache, block_size) for cache in (k_cache, v_cache)]
    _beginnings_kernel[(num_processors(q.device),)](
        q, *(in_shared_memory(found, size) for found in tiles),
        *(in_shared_memory(found, PANEL.value) for found in blocks),
        count, items, rows, slots, *state, *q.stride()[:2], scale,
        NUM_KV_HEADS=kv_heads, GROUP=q.shape[1] // kv_heads, SIZE=key_size, SLACK=slack,
        BLOCK_SIZE=block_size, LINES=LINES // 2, BLOCK_N=TILE, BLOCK_D=size,
        STAGES=_STAGES, ATTENDING=_ATTENDING, num_warps=4, maxnreg=_REGISTERS,
    )  # fmt: skip
