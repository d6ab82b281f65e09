"""The shared phase: every shared node's keys against the queries of all rows under it.

One launch for all nodes of all levels (Hydragen section 3.2, ChunkAttention's chunk-first phase).
The work list of the plan (`attention_plan.py`) holds items, a band of rows and what it reads, the
longest first; each program takes one (item, KV head) after the other. Results are partials.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels.attention_plan import SEGMENT_FIELDS, AttentionPlan
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.items import item_of
from sharegen.kernels.online_softmax import (
    NO_LIMIT,
    attend,
    finish,
    fp8_scores,
    from_fp8,
    lowest_visible,
    scores,
)
from sharegen.kernels.tile_copy import (
    copies_tiles,
    copy_tile,
    descriptors,
    fp8_pointers,
    gather_scales,
    gather_tile,
    is_flat,
)
from sharegen.kernels.tiles import padded, precision

_SEGMENT_FIELDS = tl.constexpr(SEGMENT_FIELDS)


@triton.jit
def _attend_segment(
    acc, m, total, q, k_desc, v_desc, k_head_ptr, v_head_ptr, scales_ptr, blocks_ptr, kv_head,
    o_n, first_block, in_a_run, begin, end, band_row, row_begin, row_end, num_rows, lowest,
    stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
    NUM_KV_HEADS: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    FP8: tl.constexpr, FLAT: tl.constexpr, TMA: tl.constexpr,
    LIMIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state after tokens [begin, end) of a node.

    band_row: [M] of num_rows at most, those from row_begin to row_end under the node.
    """
    contiguous = in_a_run != 0
    whole = begin  # up to here in whole tiles of consecutive slots that all rows see
    if FLAT:
        plain = contiguous & (row_begin <= 0)
        plain &= row_end >= num_rows
        whole += tl.where(plain, (end - begin) // BLOCK_N * BLOCK_N, 0)
        for n in range(begin, whole, BLOCK_N):
            slot = first_block * BLOCK_SIZE + n
            if TMA:
                k, v = copy_tile(k_desc, v_desc, kv_head, slot, BLOCK_N, BLOCK_DK, BLOCK_DV)
            else:
                k, v = gather_tile(
                    k_head_ptr, v_head_ptr, slot, o_n[:, None], True,
                    stride_kt, stride_kt, stride_vt, stride_vt,
                    KEY_SIZE, VALUE_SIZE, BLOCK_DK, BLOCK_DV,
                )  # fmt: skip
            if FP8:
                at = n + o_n
                k_scale, v_scale = gather_scales(
                    scales_ptr, kv_head, first_block + at // BLOCK_SIZE, at % BLOCK_SIZE,
                    True, NUM_KV_HEADS, BLOCK_SIZE, True,
                )  # fmt: skip
                s, factor = fp8_scores(q, k, k_scale, scale, softcap, HAS_SOFTCAP, PRECISION)
                v = from_fp8(v, v_scale, q.dtype)
            else:
                s, factor = scores(q, k, scale, softcap, HAS_SOFTCAP, PRECISION)
            if LIMIT != NO_LIMIT:
                s = tl.where((n + o_n)[None, :] >= lowest[:, None], s, float("-inf"))
            acc, m, total = attend(acc, m, total, s, factor, v, LIMIT != NO_LIMIT, PRECISION)
    under = (band_row >= row_begin) & (band_row < row_end)
    for n in range(whole, end, BLOCK_N):
        token = n + o_n
        real = token < end
        block = first_block + token // BLOCK_SIZE
        if not contiguous:
            block = tl.load(blocks_ptr + block, mask=real, other=0)
        k, v = gather_tile(
            k_head_ptr, v_head_ptr,
            block[:, None], (token % BLOCK_SIZE)[:, None], real[:, None],
            stride_kb, stride_kt, stride_vb, stride_vt,
            KEY_SIZE, VALUE_SIZE, BLOCK_DK, BLOCK_DV,
        )  # fmt: skip
        if FP8:
            k_scale, v_scale = gather_scales(
                scales_ptr, kv_head, block, token % BLOCK_SIZE, real, NUM_KV_HEADS, BLOCK_SIZE, True
            )
            s, factor = fp8_scores(q, k, k_scale, scale, softcap, HAS_SOFTCAP, PRECISION)
            v = from_fp8(v, v_scale, q.dtype)
        else:
            s, factor = scores(q, k, scale, softcap, HAS_SOFTCAP, PRECISION)
        seen = real[None, :] & under[:, None]
        if LIMIT != NO_LIMIT:
            seen = seen & (token[None, :] >= lowest[:, None])
        s = tl.where(seen, s, float("-inf"))
        acc, m, total = attend(acc, m, total, s, factor, v, True, PRECISION)
    return acc, m, total


@triton.jit
def _shared_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc,
    fp8_k_ptr, fp8_v_ptr, scales_ptr, fp8_k_desc, fp8_v_desc,
    counts_ptr, order_ptr, partial_start_ptr, items_ptr, segments_ptr, blocks_ptr, position_ptr,
    out_ptr, lse_ptr,
    stride_qr, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_nkb, stride_nkt, stride_nkh, stride_nvb, stride_nvt, stride_nvh,
    scale, softcap, limit,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    FP8: tl.constexpr, FLAT: tl.constexpr, TMA: tl.constexpr,
    LIMIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    o_m = tl.arange(0, BLOCK_M)
    o_n = tl.arange(0, BLOCK_N)
    o_dk = tl.arange(0, BLOCK_DK)
    o_dv = tl.arange(0, BLOCK_DV)
    num_items = tl.load(counts_ptr)
    num_rows = tl.load(counts_ptr + 1)
    for work in range(tl.program_id(0), num_items * NUM_KV_HEADS, tl.num_programs(0)):
        kv_head, first_row, ordinal, first_segment, last_segment = item_of(
            items_ptr, work, NUM_KV_HEADS
        )
        band_row = o_m // GROUP
        alive = (band_row < BLOCK_M // GROUP) & (first_row + band_row < num_rows)
        row = tl.load(order_ptr + first_row + band_row, mask=alive, other=0)
        partial = tl.load(partial_start_ptr + row, mask=alive, other=0) + ordinal
        head = kv_head * GROUP + o_m % GROUP
        p_q = q_ptr + (row.to(tl.int64) * stride_qr + head * stride_qh)[:, None] + o_dk[None, :]
        q = tl.load(p_q, mask=alive[:, None] & (o_dk < KEY_SIZE)[None, :], other=0.0)
        k_head_ptr = k_ptr + kv_head.to(tl.int64) * stride_kh
        v_head_ptr = v_ptr + kv_head.to(tl.int64) * stride_vh
        position = row
        if LIMIT != NO_LIMIT:
            position = tl.load(position_ptr + row, mask=alive, other=2147483647)

        acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        for segment in range(first_segment, last_segment):
            segment_ptr = segments_ptr + segment * _SEGMENT_FIELDS
            row_begin = tl.load(segment_ptr)
            row_end = tl.load(segment_ptr + 1)
            begin = tl.load(segment_ptr + 2)
            end = tl.load(segment_ptr + 3)
            first_block = tl.load(segment_ptr + 5)
            in_a_run = tl.load(segment_ptr + 6)
            lowest = tl.zeros([BLOCK_M], tl.int32)
            if LIMIT != NO_LIMIT:
                lowest = lowest_visible(position, limit, LIMIT) - tl.load(segment_ptr + 4)
                unseen = tl.maximum(tl.min(lowest) - begin, 0)
                begin = tl.minimum(begin + unseen // BLOCK_N * BLOCK_N, end)
            in_band = tl.minimum(BLOCK_M // GROUP, num_rows - first_row)
            if FP8 and tl.load(segment_ptr + 7) != 0:
                acc, m, total = _attend_segment(
                    acc, m, total, q, fp8_k_desc, fp8_v_desc,
                    fp8_k_ptr + kv_head.to(tl.int64) * stride_nkh,
                    fp8_v_ptr + kv_head.to(tl.int64) * stride_nvh, scales_ptr, blocks_ptr,
                    kv_head, o_n, first_block, in_a_run, begin, end,
                    band_row, row_begin, row_end, in_band, lowest,
                    stride_nkb, stride_nkt, stride_nvb, stride_nvt, scale, softcap,
                    NUM_KV_HEADS, KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV,
                    True, FLAT, TMA, LIMIT, HAS_SOFTCAP, PRECISION,
                )  # fmt: skip
            else:
                acc, m, total = _attend_segment(
                    acc, m, total, q, k_desc, v_desc, k_head_ptr, v_head_ptr, None, blocks_ptr,
                    kv_head, o_n, first_block, in_a_run, begin, end,
                    band_row, row_begin, row_end, in_band, lowest,
                    stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
                    NUM_KV_HEADS, KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV,
                    False, FLAT, TMA, LIMIT, HAS_SOFTCAP, PRECISION,
                )  # fmt: skip

        out, lse = finish(acc, m, total)
        o_partial = partial.to(tl.int64) * NUM_HEADS + head
        p_out = out_ptr + (o_partial * VALUE_SIZE)[:, None] + o_dv[None, :]
        written = alive[:, None] & (o_dv < VALUE_SIZE)[None, :]
        tl.store(p_out, out.to(out_ptr.dtype.element_ty), mask=written)
        tl.store(lse_ptr + o_partial, lse, mask=alive)


def shared_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: AttentionPlan,
    position: torch.Tensor,
    *,
    fp8: FP8Blocks | None = None,
    scale: float,
    window: int | None = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
) -> None:
    """Write the partials of all rows over all shared nodes into the plan's buffers.

    Args:
        q: [rows, num_heads, key_size]; its last dimension is dense, as are those of the caches.
        k_cache, v_cache: [blocks, block_size, num_kv_heads, *].
        plan: the shared nodes, and the buffers.
        position: [rows] int32, absolute, of each query.
        fp8: the FP8 blocks, where the nodes that are marked so lie in these.
        scale: multiplies the scores.
        window: keys that a query sees at most, its own included; None for all.
        attention_chunk: length of the chunks within which queries see keys; None for none.
        softcap: limit of the scores, where the model has one.
    """
    shape, tile = plan.shape, plan.tile
    plan.check(q, k_cache, v_cache)
    if not plan.fp8:  # no node is, and the kernel that knows of them takes more registers
        fp8 = None
    assert position.dtype == torch.int32 and position.is_contiguous()
    limit, limit_kind = limit_of(window, attention_chunk)
    caches = [k_cache, v_cache]
    if fp8 is not None:
        plan.check_fp8(fp8)
        caches += [fp8.keys, fp8.values]
    flat, tma = all(map(is_flat, caches)), all(map(copies_tiles, caches))
    if tma and fp8 is None and limit_kind == NO_LIMIT.value and softcap is None:
        # Here, for Gluon comes with it, which no other card needs.
        from sharegen.kernels.shared_hopper import launch_on_hopper, suits_hopper

        if suits_hopper(plan, q.device):
            launch_on_hopper(q, k_cache, v_cache, plan, scale)
            return
    _shared_kernel[(plan.num_programs,)](
        q, k_cache, v_cache,
        *descriptors((k_cache, v_cache), tile.keys, tma),
        *fp8_pointers(fp8, tile.keys, tma),
        plan.counts, plan.order, plan.partial_start, plan.items, plan.segments, plan.blocks,
        position,
        plan.partial_out, plan.partial_lse,
        q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        *((0,) * 6 if fp8 is None else fp8.strides),
        scale, softcap or 1.0, limit,
        NUM_KV_HEADS=shape.num_kv_heads, GROUP=shape.group,
        KEY_SIZE=shape.key_size, VALUE_SIZE=shape.value_size, BLOCK_SIZE=shape.block_size,
        BLOCK_M=tile.lines, BLOCK_N=tile.keys,
        BLOCK_DK=padded(shape.key_size), BLOCK_DV=padded(shape.value_size),
        FP8=fp8 is not None, FLAT=flat, TMA=tma, LIMIT=limit_kind,
        HAS_SOFTCAP=softcap is not None, PRECISION=precision(shape.dtype),
        num_warps=tile.num_warps, num_stages=tile.num_stages, maxnreg=tile.max_registers,
    )  # fmt: skip


def limit_of(window: int | None, attention_chunk: int | None) -> tuple[int, int]:
    """Return (value, kind) of what bounds a row's view of the past, for the kernels."""
    assert window is None or attention_chunk is None, "a layer has a window or chunks, not both"
    if window is not None:
        return window, 1
    if attention_chunk is not None:
        return attention_chunk, 2
    return 0, 0
