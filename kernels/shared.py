"""The shared phase: every shared node's keys against the queries of all rows under it.

One launch for all nodes of all levels (Hydragen section 3.2, ChunkAttention's chunk-first phase).
The work list of the plan holds items (node, tile of rows, range of keys), the longest first; each
program takes one (item, KV head) after the other. Results are partials, see `plan.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels.online_softmax import NO_LIMIT, attend, finish, lowest_visible, scores
from sharegen.kernels.plan import ITEM_FIELDS, Plan
from sharegen.kernels.tiles import padded, precision

_ITEM_FIELDS = tl.constexpr(ITEM_FIELDS)


@triton.jit
def _walk(
    acc, m, l, q,
    k_ptr, v_ptr, blocks_ptr, first_block, begin, end, lowest, node_position,
    stride_kb, stride_kt, stride_vb, stride_vt,
    scale, softcap,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    CONTIGUOUS: tl.constexpr, FLAT: tl.constexpr, TAIL: tl.constexpr,
    LIMIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to the node's tokens [begin, end). TAIL: the last tile may be cut short by `end`."""
    o_n = tl.arange(0, BLOCK_N)
    o_dk = tl.arange(0, BLOCK_DK)
    o_dv = tl.arange(0, BLOCK_DV)
    for n in range(begin, end, BLOCK_N):
        token = n + o_n
        if CONTIGUOUS and FLAT:
            start = first_block.to(tl.int64) * BLOCK_SIZE + n
            p_k = k_ptr + start * stride_kt + (o_n[:, None] * stride_kt + o_dk[None, :])
            p_v = v_ptr + start * stride_vt + (o_n[:, None] * stride_vt + o_dv[None, :])
        else:
            if CONTIGUOUS:
                block = (first_block + token // BLOCK_SIZE).to(tl.int64)
            else:
                p_block = blocks_ptr + first_block + token // BLOCK_SIZE
                block = tl.load(p_block, mask=token < end, other=0).to(tl.int64)
            offset = token % BLOCK_SIZE
            p_k = k_ptr + (block * stride_kb + offset * stride_kt)[:, None] + o_dk[None, :]
            p_v = v_ptr + (block * stride_vb + offset * stride_vt)[:, None] + o_dv[None, :]
        if TAIL:
            k = tl.load(p_k, mask=(token < end)[:, None] & (o_dk < KEY_SIZE)[None, :], other=0.0)
            v = tl.load(p_v, mask=(token < end)[:, None] & (o_dv < VALUE_SIZE)[None, :], other=0.0)
        else:
            if KEY_SIZE == BLOCK_DK:
                k = tl.load(p_k)
            else:
                k = tl.load(p_k, mask=(o_dk < KEY_SIZE)[None, :], other=0.0)
            if VALUE_SIZE == BLOCK_DV:
                v = tl.load(p_v)
            else:
                v = tl.load(p_v, mask=(o_dv < VALUE_SIZE)[None, :], other=0.0)
        s, factor = scores(q, k, scale, softcap, HAS_SOFTCAP, PRECISION)
        if TAIL:
            s = tl.where((token < end)[None, :], s, float("-inf"))
        if LIMIT != NO_LIMIT:
            visible = (node_position + token)[None, :] >= lowest[:, None]
            s = tl.where(visible, s, float("-inf"))
        acc, m, l = attend(acc, m, l, s, factor, v, LIMIT != NO_LIMIT, PRECISION)
    return acc, m, l


@triton.jit
def _shared_kernel(
    q_ptr, k_ptr, v_ptr, counts_ptr, order_ptr, partial_start_ptr, items_ptr, blocks_ptr,
    position_ptr, out_ptr, lse_ptr,
    stride_qr, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    scale, softcap, limit,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    FLAT: tl.constexpr, LIMIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    o_m = tl.arange(0, BLOCK_M)
    o_dk = tl.arange(0, BLOCK_DK)
    o_dv = tl.arange(0, BLOCK_DV)
    num_works = tl.load(counts_ptr) * NUM_KV_HEADS
    for work in range(tl.program_id(0), num_works, tl.num_programs(0)):
        item_ptr = items_ptr + work // NUM_KV_HEADS * _ITEM_FIELDS
        kv_head = work % NUM_KV_HEADS
        first_row = tl.load(item_ptr)
        num_rows = tl.load(item_ptr + 1)
        begin = tl.load(item_ptr + 2)
        end = tl.load(item_ptr + 3)
        node_position = tl.load(item_ptr + 4)
        first_block = tl.load(item_ptr + 5)
        contiguous = tl.load(item_ptr + 6)
        ordinal = tl.load(item_ptr + 7)

        alive = o_m // GROUP < num_rows
        row = tl.load(order_ptr + first_row + o_m // GROUP, mask=alive, other=0)
        partial = tl.load(partial_start_ptr + row, mask=alive, other=0) + ordinal
        head = kv_head * GROUP + o_m % GROUP
        p_q = q_ptr + (row.to(tl.int64) * stride_qr + head * stride_qh)[:, None] + o_dk[None, :]
        q = tl.load(p_q, mask=alive[:, None] & (o_dk < KEY_SIZE)[None, :], other=0.0)
        k_head_ptr = k_ptr + kv_head.to(tl.int64) * stride_kh
        v_head_ptr = v_ptr + kv_head.to(tl.int64) * stride_vh

        lowest = tl.zeros([BLOCK_M], tl.int32)
        if LIMIT != NO_LIMIT:
            position = tl.load(position_ptr + row, mask=alive, other=2147483647)
            lowest = lowest_visible(position, limit, LIMIT)
            unseen = tl.maximum(tl.min(lowest) - node_position - begin, 0)
            begin = tl.minimum(begin + unseen // BLOCK_N * BLOCK_N, end)

        acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        l = tl.zeros([BLOCK_M], tl.float32)
        if contiguous != 0:
            whole = begin + (end - begin) // BLOCK_N * BLOCK_N
            acc, m, l = _walk(
                acc, m, l, q, k_head_ptr, v_head_ptr, blocks_ptr, first_block, begin, whole,
                lowest, node_position, stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
                KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV, True, FLAT, False,
                LIMIT, HAS_SOFTCAP, PRECISION)  # fmt: skip
            acc, m, l = _walk(
                acc, m, l, q, k_head_ptr, v_head_ptr, blocks_ptr, first_block, whole, end,
                lowest, node_position, stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
                KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV, True, FLAT, True,
                LIMIT, HAS_SOFTCAP, PRECISION)  # fmt: skip
        else:
            acc, m, l = _walk(
                acc, m, l, q, k_head_ptr, v_head_ptr, blocks_ptr, first_block, begin, end,
                lowest, node_position, stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
                KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV, False, FLAT, True,
                LIMIT, HAS_SOFTCAP, PRECISION)  # fmt: skip

        out, lse = finish(acc, m, l)
        o_partial = partial.to(tl.int64) * NUM_HEADS + head
        p_out = out_ptr + (o_partial * VALUE_SIZE)[:, None] + o_dv[None, :]
        written = alive[:, None] & (o_dv < VALUE_SIZE)[None, :]
        tl.store(p_out, out.to(out_ptr.dtype.element_ty), mask=written)
        tl.store(lse_ptr + o_partial, lse, mask=alive)


def shared_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: Plan,
    position: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
) -> None:
    """Write the partials of all rows over all shared nodes into the plan's buffers.

    q: [rows, num_heads, key_size]; k_cache, v_cache: [blocks, block_size, num_kv_heads, *];
    position: [rows] int32, absolute, of each query. Last dimensions are dense, the others any.
    """
    shape, tile = plan.shape, plan.tile
    plan.check(q, k_cache, v_cache)
    assert position.dtype == torch.int32 and position.is_contiguous()
    limit, limit_kind = limit_of(window, chunk)
    _shared_kernel[(plan.num_programs,)](
        q, k_cache, v_cache, plan.counts, plan.order, plan.partial_start, plan.items, plan.blocks,
        position, plan.partial_out, plan.partial_lse,
        q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        scale, softcap or 1.0, limit,
        NUM_KV_HEADS=shape.num_kv_heads, GROUP=shape.group,
        KEY_SIZE=shape.key_size, VALUE_SIZE=shape.value_size, BLOCK_SIZE=shape.block_size,
        BLOCK_M=tile.lines, BLOCK_N=tile.keys,
        BLOCK_DK=padded(shape.key_size), BLOCK_DV=padded(shape.value_size),
        FLAT=_is_flat(k_cache) and _is_flat(v_cache), LIMIT=limit_kind,
        HAS_SOFTCAP=softcap is not None, PRECISION=precision(shape.dtype),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip


def limit_of(window: int | None, chunk: int | None) -> tuple[int, int]:
    """(value, kind) of what bounds a row's view of the past, for the kernels."""
    assert window is None or chunk is None, "a layer has a window or chunks, not both"
    if window is not None:
        return window, 1
    if chunk is not None:
        return chunk, 2
    return 0, 0


def _is_flat(cache: torch.Tensor) -> bool:
    """Whether the slot after a block's last one is the next block's first one."""
    return cache.stride(0) == cache.shape[1] * cache.stride(1)
