"""The suffix phase: each row against its own tokens, and everything merged into the output.

A program takes one row and one KV head: the query heads of the group are packed into one tile, so
the keys are read once. Products are transposed, keys by heads: tensor cores want 16 keys and 8
heads, where heads by keys would want 16 heads, most of them padding. First come the row's unshared
nodes (those that are not worth the shared phase), then its own blocks, which are read like one
more. The program folds in the row's shared partials and the sinks and writes the result; when the
batch is too small to fill the device, a row's tokens are split over several programs and the parts
are merged afterwards.

Rows of one sample that follow each other read the same keys. A program takes several of them: each
has lines of its own in the tile, and adds up what it would add up by itself, in the same order.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

from sharegen.kernels.attention_plan import (
    OWN_CUT,
    OWN_PARTS,
    UNSHARED_FIELDS,
    AttentionPlan,
)
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.fp8_rows import FP8Rows
from sharegen.kernels.layout import FOLLOWING
from sharegen.kernels.merge import merge_into_rows, merge_partials
from sharegen.kernels.online_softmax import (
    NO_LIMIT,
    attend_transposed,
    finish,
    fold,
    fold_sink,
    in_log2,
    lowest_visible,
)
from sharegen.kernels.shared import limit_of
from sharegen.kernels.tile_copy import (
    copies_tiles,
    descriptors,
    fp8_pointers,
    gather_scales,
    gather_tile,
)
from sharegen.kernels.tiles import Tile, padded, precision, resident_programs, suffix_tile

_MOST_SPLITS = 32
_SMALL = tl.constexpr(2.0**-100)  # a unit that any scale will outgrow
_TABLE = tl.constexpr(32)  # blocks looked up at a time
_UNSHARED_FIELDS = tl.constexpr(UNSHARED_FIELDS)


@triton.jit
def _attend_tile(
    acc, m, total, unit, q, k, v, k_scale, v_scale, seen, scale, softcap,
    FP8: tl.constexpr, MAY_BE_EMPTY: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state after the keys k [N, D], of which the row sees those that are `seen` [N].

    No value v [N, Dv] may be NaN, seen or not.
    """
    if FP8:
        s = tl.dot(k.to(q.dtype), q, input_precision=PRECISION) * k_scale[:, None]
        v = v.to(q.dtype)
    else:
        s = tl.dot(k, q, input_precision=PRECISION)
    s, factor = in_log2(s, scale, softcap, HAS_SOFTCAP)
    s = tl.where(seen[:, None], s, float("-inf"))
    return attend_transposed(
        acc, m, total, s, factor, v, v_scale if FP8 else None, unit, MAY_BE_EMPTY, PRECISION
    )


@triton.jit
def _queries(
    q_ptr, stride_qr, stride_qh, GROUP: tl.constexpr, KEY_SIZE: tl.constexpr, LINES: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_DK: tl.constexpr,
):  # fmt: skip
    """Load [ROWS * LINES, BLOCK_DK]: the queries of a group of each row, and zeros."""
    o_m = tl.arange(0, ROWS * LINES)
    o_dk = tl.arange(0, BLOCK_DK)
    real = (o_m % LINES < GROUP)[:, None] & (o_dk < KEY_SIZE)[None, :]
    o_q = o_m // LINES * stride_qr + o_m % LINES * stride_qh
    return tl.load(q_ptr + o_q[:, None] + o_dk[None, :], mask=real, other=0.0)


@triton.jit
def _in_float16(q):
    """The queries in units of a power of two, so that all of them are float16's, and that unit.

    The largest becomes 2^14 to 2^15; what is less than 2^-28 of it loses bits.
    """
    largest = tl.max(tl.abs(q.to(tl.float32)))
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) - 14
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    unit = (exponent << 23).to(tl.float32, bitcast=True)
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    dtype: tl.constexpr = tl.float32 if q.dtype == tl.float32 else tl.float16
    return (q.to(tl.float32) * inverse).to(dtype), unit


@triton.jit
def _repeated(q, BLOCK_M: tl.constexpr):
    """q [LINES, D], transposed and repeated until there are as many lines as a product takes."""
    LINES: tl.constexpr = q.shape[0]
    D: tl.constexpr = q.shape[1]
    if LINES < BLOCK_M:
        q = tl.broadcast_to(q[None, :, :], (BLOCK_M // LINES, LINES, D)).reshape(BLOCK_M, D)
    return tl.trans(q)


@triton.jit
def _listed(list_ptr, block, listed, real):
    """The blocks themselves, or what the list holds at these places where they are `listed`."""
    return tl.where(listed, tl.load(list_ptr + block, mask=real & listed, other=0), block)


@triton.jit
def _part(length, lowest, split, num_splits, is_own, LIMIT: tl.constexpr, SPLIT: tl.constexpr,
          CUT: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    """[begin, end): what program `split` reads of so many tokens, from the one seen first on.

    CUT: 0, or the own tokens that each program reads, and the last one what is left; then nodes are
    the first program's.
    """
    begin = length * 0
    end = length
    if LIMIT != NO_LIMIT:
        begin = tl.minimum(tl.maximum(lowest, 0) // BLOCK_N * BLOCK_N, end)
    if CUT > 0:
        first = tl.where(is_own, split * CUT, 0)
        more = is_own & (split < num_splits - 1)
        last = tl.where(more, first + CUT, tl.where(is_own | (split == 0), end, 0))
        end = tl.minimum(last, end)
        begin = tl.minimum(tl.maximum(begin, first), end)
    elif SPLIT:
        part = tl.cdiv(tl.cdiv(end - begin, num_splits), BLOCK_N) * BLOCK_N
        begin = tl.minimum(begin + split * part, end)
        end = tl.minimum(begin + part, end)
    return begin, end


@triton.jit
def _last_tile(begin, end, BLOCK_N: tl.constexpr):
    """Where the last tile of [begin, end) begins, or end where there is none."""
    return tl.where(end > begin, begin + (end - begin - 1) // BLOCK_N * BLOCK_N, end)


@triton.jit
def _scales_of_tile(
    scales_ptr, kv_head, i_block, blocks, n, last, end,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr,
    FP8: tl.constexpr,
):  # fmt: skip
    """Scales of the keys and values of the tile from n on, as `_attend_tokens` reads it."""
    offset = n % BLOCK_SIZE - tl.maximum(n + BLOCK_N - end, 0) + tl.arange(0, BLOCK_N)
    block = tl.sum(tl.where(i_block == n // BLOCK_SIZE, blocks, 0), 0)
    real = (offset >= 0) & (n < last)
    return gather_scales(scales_ptr, kv_head, block, offset, real, NUM_KV_HEADS, BLOCK_SIZE, FP8)


@triton.jit
def _attend_tokens(
    acc, m, total, q, q_unit, k_desc, v_desc, k_head_ptr, v_head_ptr, scales_ptr, kv_head,
    list_ptr, table, first_block, listed, begin, end, lowest,
    stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
    NUM_KV_HEADS: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_DK: tl.constexpr,
    BLOCK_DV: tl.constexpr, FP8: tl.constexpr, NUM_STAGES: tl.constexpr, TMA: tl.constexpr,
    LIMIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The state after tokens [begin, end) of an unshared node, or of the row's own.

    table: where the copy engine reads, the first _TABLE blocks that the tokens lie in.
    FP8 ones are multiplied in float16, of which each of their numbers is one (but in float32
    where that is the model's), so q comes in units of q_unit then.
    """
    o_n = tl.arange(0, BLOCK_N)
    unit = 1.0
    if FP8:
        unit = tl.where(tl.max(total, 0) > 0.0, 1.0, _SMALL)  # that of acc
        scale *= q_unit
    if TMA:  # tiles lie inside one block each
        o_table = tl.arange(0, _TABLE)
        SPAN: tl.constexpr = (_TABLE - 1) * BLOCK_SIZE  # it may begin inside a block
        blocks = table  # a look-up in memory for each tile would keep the copies waiting
        i_block = begin // BLOCK_SIZE + o_table
        for first in range(begin, end, SPAN):
            last = tl.minimum(first + SPAN, end)
            k_scale, v_scale = _scales_of_tile(
                scales_ptr, kv_head, i_block, blocks, first, last, end,
                NUM_KV_HEADS, BLOCK_SIZE, BLOCK_N, FP8,
            )  # fmt: skip
            for n in tl.range(first, last, BLOCK_N, num_stages=NUM_STAGES):
                # The last tile ends with the last token: it begins with tokens that were there
                # before, or outside the block, where the copy engine writes zeros. So whatever
                # comes after that token is never read, not even a NaN.
                token = tl.minimum(n, end - BLOCK_N) + o_n
                block = tl.sum(tl.where(i_block == n // BLOCK_SIZE, blocks, 0), 0)
                offset = n % BLOCK_SIZE - tl.maximum(n + BLOCK_N - end, 0)
                k = k_desc.load([kv_head, block, offset, 0]).reshape(BLOCK_N, BLOCK_DK)
                v = v_desc.load([kv_head, block, offset, 0]).reshape(BLOCK_N, BLOCK_DV)
                if FP8:  # a tile ahead: the copy engine takes nothing so small
                    next_scales = _scales_of_tile(
                        scales_ptr, kv_head, i_block, blocks, n + BLOCK_N, last, end,
                        NUM_KV_HEADS, BLOCK_SIZE, BLOCK_N, FP8,
                    )  # fmt: skip
                acc, m, total, unit = _attend_tile(
                    acc, m, total, unit, q, k, v, k_scale, v_scale, token >= tl.maximum(n, lowest),
                    scale, softcap, FP8, LIMIT != NO_LIMIT, HAS_SOFTCAP, PRECISION,
                )  # fmt: skip
                if FP8:
                    k_scale, v_scale = next_scales
            i_block = last // BLOCK_SIZE + o_table
            used = (i_block * BLOCK_SIZE < end) & (last < end)
            blocks = _listed(list_ptr, first_block + i_block, listed, used)
    else:
        for n in range(begin, end, BLOCK_N):
            token = n + o_n
            real = token < end
            block = _listed(list_ptr, first_block + token // BLOCK_SIZE, listed, real)
            k, v = gather_tile(
                k_head_ptr, v_head_ptr,
                block[:, None], (token % BLOCK_SIZE)[:, None], real[:, None],
                stride_kb, stride_kt, stride_vb, stride_vt,
                KEY_SIZE, VALUE_SIZE, BLOCK_DK, BLOCK_DV,
            )  # fmt: skip
            k_scale, v_scale = gather_scales(
                scales_ptr, kv_head, block, token % BLOCK_SIZE, real, NUM_KV_HEADS, BLOCK_SIZE,
                FP8,
            )  # fmt: skip
            acc, m, total, unit = _attend_tile(
                acc, m, total, unit, q, k, v, k_scale, v_scale, real & (token >= lowest),
                scale, softcap, FP8, LIMIT != NO_LIMIT, HAS_SOFTCAP, PRECISION,
            )  # fmt: skip
    if FP8:
        acc *= unit
    return acc, m, total


@triton.jit(do_not_specialize=["num_splits", "stride_tr", "table_width"])
def _suffix_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc,
    fp8_k_ptr, fp8_v_ptr, scales_ptr, fp8_k_desc, fp8_v_desc,
    tables_ptr, prefix_length_ptr, position_ptr,
    unshared_start_ptr, unshared_ptr, blocks_ptr,
    partial_start_ptr, shared_out_ptr, shared_lse_ptr, sinks_ptr, out_ptr, lse_ptr,
    stride_qr, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_nkb, stride_nkt, stride_nkh, stride_nvb, stride_nvt, stride_nvh,
    stride_tr, table_width, stride_or, stride_os, stride_oh, num_splits,
    scale, softcap, limit,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    LINES: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    SPLIT: tl.constexpr, CUT: tl.constexpr, PARTIAL: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_UNSHARED: tl.constexpr, FP8: tl.constexpr, NUM_STAGES: tl.constexpr,
    TMA: tl.constexpr, LIMIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    row = (tl.program_id(0) // NUM_KV_HEADS).to(tl.int64) * ROWS  # the first of its rows
    split = tl.program_id(1)
    prefix_length = tl.load(prefix_length_ptr + row)
    position = tl.load(position_ptr + row)
    FROM_FIRST: tl.constexpr = TMA and not (HAS_UNSHARED or LIMIT != NO_LIMIT or SPLIT)
    own_table = 0
    if FROM_FIRST:  # before it is known how many blocks there are: no load waits for another then
        o_table = tl.arange(0, _TABLE)
        p_table = tables_ptr + row * stride_tr + o_table
        own_table = tl.load(p_table, mask=o_table < table_width, other=0)
    if not PARTIAL:
        first_partial = tl.load(partial_start_ptr + row)
        last_partial = tl.load(partial_start_ptr + row + 1)

    o_m = tl.arange(0, BLOCK_M)
    o_dv = tl.arange(0, BLOCK_DV)
    of_row = o_m // LINES
    head = kv_head * GROUP + o_m
    alive = o_m < GROUP
    if ROWS > 1:
        head = kv_head * GROUP + o_m % LINES
        alive = o_m % LINES < GROUP
    o_row = tl.where(alive, of_row, 0)
    if CUT > 0:  # noqa: SIM102 - decided when compiled, what is below by the row
        # Most rows have nothing for the further programs: few are so long.
        if (split > 0) & (position - prefix_length < split * CUT):
            p_lse = lse_ptr + ((row + o_row) * num_splits + split) * NUM_HEADS + head
            tl.store(p_lse, tl.full([BLOCK_M], float("-inf"), tl.float32), mask=alive)
            return
    written = alive[:, None] & (o_dv < VALUE_SIZE)[None, :]
    p_q = q_ptr + row * stride_qr + kv_head * GROUP * stride_qh
    q = _queries(p_q, stride_qr, stride_qh, GROUP, KEY_SIZE, LINES, ROWS, BLOCK_DK)
    if FP8:
        fp8_q, q_unit = _in_float16(q)
        fp8_q = _repeated(fp8_q, BLOCK_M)
    q = _repeated(q, BLOCK_M)
    acc = tl.zeros([BLOCK_DV, BLOCK_M], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    seen_from = position * 0  # the first position that the row sees
    if LIMIT != NO_LIMIT:
        seen_from = lowest_visible(position, limit, LIMIT)

    first_node = 0
    own = 0  # comes after the unshared nodes, and is read like one
    if HAS_UNSHARED:
        first_node = tl.load(unshared_start_ptr + row)
        own = tl.load(unshared_start_ptr + row + 1)
    for node in range(first_node, own + 1):
        length = tl.maximum(position - prefix_length + 1, 0)
        start = prefix_length
        first_block = 0
        listed = True
        fp8 = True
        list_ptr = tables_ptr + row * stride_tr
        if node < own:
            node_ptr = unshared_ptr + node * _UNSHARED_FIELDS
            length = tl.load(node_ptr)
            start = tl.load(node_ptr + 1)
            first_block = tl.load(node_ptr + 2)
            listed = tl.load(node_ptr + 3) == 0
            if FP8:
                fp8 = tl.load(node_ptr + 3) >= 2
                listed = tl.load(node_ptr + 3) % 2 == 0
            list_ptr = blocks_ptr
        lowest = seen_from - start
        begin, end = _part(
            length, lowest, split, num_splits, node == own, LIMIT, SPLIT, CUT, BLOCK_N
        )
        if ROWS > 1:  # what is before the last tile, which is the same for all of them
            end = _last_tile(begin, end, BLOCK_N)
        table = own_table
        if TMA and not FROM_FIRST:
            i_block = begin // BLOCK_SIZE + tl.arange(0, _TABLE)
            table = _listed(list_ptr, first_block + i_block, listed, i_block * BLOCK_SIZE < end)
        if FP8 and (not HAS_UNSHARED or fp8):
            acc, m, total = _attend_tokens(
                acc, m, total, fp8_q, q_unit, fp8_k_desc, fp8_v_desc,
                fp8_k_ptr + kv_head * stride_nkh, fp8_v_ptr + kv_head * stride_nvh,
                scales_ptr, kv_head, list_ptr, table, first_block, listed, begin, end, lowest,
                stride_nkb, stride_nkt, stride_nvb, stride_nvt, scale, softcap,
                NUM_KV_HEADS, KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV,
                True, NUM_STAGES, TMA, LIMIT, HAS_SOFTCAP, PRECISION,
            )  # fmt: skip
        else:
            acc, m, total = _attend_tokens(
                acc, m, total, q, 1.0, k_desc, v_desc,
                k_ptr + kv_head * stride_kh, v_ptr + kv_head * stride_vh,
                None, kv_head, list_ptr, table, first_block, listed, begin, end, lowest,
                stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
                NUM_KV_HEADS, KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV,
                False, NUM_STAGES, TMA, LIMIT, HAS_SOFTCAP, PRECISION,
            )  # fmt: skip

    if ROWS > 1:  # then each row's last tile, which ends with that row's token
        list_ptr = tables_ptr + row * stride_tr
        lowest = seen_from - prefix_length
        own_length = tl.maximum(position - prefix_length + 1, 0)
        begin, end = _part(own_length, lowest, split, num_splits, True, LIMIT, SPLIT, CUT, BLOCK_N)
        begin = _last_tile(begin, end, BLOCK_N)
        for i in range(ROWS):
            length = tl.load(position_ptr + row + i) - tl.load(prefix_length_ptr + row + i) + 1
            _, end = _part(
                tl.maximum(length, 0), lowest, split, num_splits, True, LIMIT, SPLIT, CUT, BLOCK_N
            )
            table = 0
            if TMA:
                i_block = begin // BLOCK_SIZE + tl.arange(0, _TABLE)
                table = _listed(list_ptr, i_block, True, i_block * BLOCK_SIZE < end)
            row_acc, row_m, row_total = _attend_tokens(
                acc, m, total, q, 1.0, k_desc, v_desc,
                k_ptr + kv_head * stride_kh, v_ptr + kv_head * stride_vh,
                None, kv_head, list_ptr, table, 0, True, begin, end, lowest,
                stride_kb, stride_kt, stride_vb, stride_vt, scale, softcap,
                NUM_KV_HEADS, KEY_SIZE, VALUE_SIZE, BLOCK_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV,
                False, NUM_STAGES, TMA, LIMIT, HAS_SOFTCAP, PRECISION,
            )  # fmt: skip
            mine = of_row == i
            is_there = length > 0  # a dead row has seen nothing
            acc = tl.where(mine[None, :], tl.where(is_there, row_acc, 0.0), acc)
            m = tl.where(mine, tl.where(is_there, row_m, float("-inf")), m)
            total = tl.where(mine, tl.where(is_there, row_total, 0.0), total)

    acc = tl.trans(acc)
    if PARTIAL:
        out, lse = finish(acc, m, total)
        p_lse = lse_ptr + ((row + o_row) * num_splits + split) * NUM_HEADS + head
        tl.store(p_lse, lse, mask=alive)
    else:
        for i in range(first_partial, last_partial):
            o_shared = tl.cast(i, tl.int64) * NUM_HEADS + head
            lse = tl.load(shared_lse_ptr + o_shared, mask=alive, other=float("-inf"))
            p_shared = shared_out_ptr + (o_shared * VALUE_SIZE)[:, None] + o_dv[None, :]
            shared = tl.load(p_shared, mask=written, other=0.0).to(tl.float32)
            acc, m, total = fold(acc, m, total, shared, lse)
        if HAS_SINKS:
            sink = tl.load(sinks_ptr + head, mask=alive, other=float("-inf")).to(tl.float32)
            acc, m, total = fold_sink(acc, m, total, sink)
        out, _ = finish(acc, m, total)
    p_out = out_ptr + row * stride_or + split * stride_os
    p_out = p_out + (o_row * stride_or + head * stride_oh)[:, None] + o_dv[None, :]
    tl.store(p_out, out.to(out_ptr.dtype.element_ty), mask=written)


def suffix_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: AttentionPlan,
    block_tables: torch.Tensor,
    prefix_length: torch.Tensor,
    position: torch.Tensor,
    *,
    fp8: FP8Blocks | None = None,
    scale: float,
    window: int | None = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    rows: FP8Rows | None = None,
    tile: Tile | None = None,
    num_splits: int | None = None,
    beside: torch.cuda.Stream | None = None,
    following: bool = False,
) -> torch.Tensor:
    """Attend from each row to its own tokens and its unshared nodes, and merge the shared partials.

    Args:
        q: [rows, num_heads, key_size].
        k_cache, v_cache: [blocks, block_size, num_kv_heads, *]; the query's own key is in them.
        plan: has the partials of the shared phase, and the unshared nodes.
        block_tables: [rows, max_blocks] int32, the suffixes' blocks.
        prefix_length: [rows] int32, tokens before the suffix.
        position: [rows] int32, of the query; prefix_length - 1 where a row has no suffix.
        fp8: the FP8 blocks, where the suffixes and the unshared nodes that are marked so lie in
            these.
        scale: multiplies the scores.
        window: keys that a query sees at most, its own included; None for all.
        attention_chunk: length of the chunks within which queries see keys; None for none.
        softcap: limit of the scores, where the model has one.
        sinks: [num_heads], one more logit without a value.
        out: [rows, num_heads, value_size], where the result goes; by default a new tensor.
        rows: where the result goes in FP8 instead.
        tile, num_splits: how the work is divided; by default as the plan finds best. Own tokens of
            a deterministic plan are cut at fixed places.
        beside: the stream of the shared phase, which runs meanwhile; merging waits for it.
        following: whether each FOLLOWING rows are tokens of one sample, one after the other, and
            then dead ones.

    Returns:
        [rows, num_heads, value_size], or the numbers of `rows` where that is given.
    """
    shape = plan.shape
    plan.check(q, k_cache, v_cache)
    num_rows = q.shape[0]
    for indices in (block_tables, prefix_length, position):
        assert indices.dtype == torch.int32 and indices.stride(-1) == 1
        assert indices.shape[0] >= num_rows
    tile = tile or suffix_tile(
        shape, plan.shared_memory, fp8=fp8 is not None, beside=beside is not None
    )
    if fp8 is not None:
        plan.check_fp8(fp8)
    tma = shape.block_size % tile.keys == 0 and all(
        copies_tiles(cache)
        for cache in (k_cache, v_cache, *(() if fp8 is None else (fp8.keys, fp8.values)))
    )
    if plan.deterministic:
        splits = min(OWN_PARTS, -(-block_tables.shape[1] * shape.block_size // OWN_CUT))
    else:
        splits = num_splits or _num_splits(num_rows * shape.num_kv_heads, plan.device, tile)
    partial = splits > 1 or beside is not None or rows is not None
    partial |= plan.deterministic  # rounded before a sink comes in, as beside the shared phase
    if out is None and rows is None:
        out = q.new_empty(num_rows, shape.num_heads, shape.value_size)
    if partial:
        parts = (num_rows, splits, shape.num_heads)
        own_out = q.new_empty(*parts, shape.value_size, dtype=shape.dtype)
        own_lse = q.new_empty(parts, dtype=torch.float32)
    else:
        assert out is not None and out.stride(-1) == 1
        own_out, own_lse = out[:, None], plan.partial_lse
    limit, limit_kind = limit_of(window, attention_chunk)
    lines = 1 << (shape.group - 1).bit_length()
    together = 1  # rows of a program
    if following and fp8 is None and limit_kind == NO_LIMIT and not plan.has_unshared and partial:
        together = max(1, FOLLOWING // lines)
        tile = replace(tile, lines=max(tile.lines, together * lines))
    _suffix_kernel[(num_rows // together * shape.num_kv_heads, splits)](
        q, k_cache, v_cache,
        *descriptors((k_cache, v_cache), tile.keys, tma, within_blocks=True),
        *fp8_pointers(fp8, tile.keys, tma, within_blocks=True),
        block_tables, prefix_length, position,
        plan.unshared_start, plan.unshared_nodes, plan.blocks,
        plan.partial_start, plan.partial_out, plan.partial_lse,
        plan.partial_lse if sinks is None else sinks, own_out, own_lse,
        q.stride(0), q.stride(1), *k_cache.stride()[:3], *v_cache.stride()[:3],
        *((0,) * 6 if fp8 is None else fp8.strides),
        block_tables.stride(0), block_tables.shape[1], *own_out.stride()[:3], splits,
        scale, softcap or 1.0, limit,
        NUM_KV_HEADS=shape.num_kv_heads, GROUP=shape.group,
        KEY_SIZE=shape.key_size, VALUE_SIZE=shape.value_size, BLOCK_SIZE=shape.block_size,
        LINES=lines, ROWS=together, BLOCK_M=tile.lines, BLOCK_N=tile.keys,
        BLOCK_DK=padded(shape.key_size), BLOCK_DV=padded(shape.value_size),
        SPLIT=splits > 1, CUT=OWN_CUT if plan.deterministic and splits > 1 else 0,
        PARTIAL=partial, HAS_SINKS=sinks is not None,
        HAS_UNSHARED=plan.has_unshared, FP8=fp8 is not None, NUM_STAGES=tile.num_stages,
        TMA=tma, LIMIT=limit_kind,
        HAS_SOFTCAP=softcap is not None, PRECISION=precision(shape.dtype),
        num_warps=tile.num_warps, num_stages=tile.num_stages, maxnreg=tile.max_registers,
    )  # fmt: skip
    if beside is not None:
        torch.cuda.current_stream(plan.device).wait_stream(beside)
    parts_of_rows = plan.partial_out, plan.partial_lse, plan.partial_start, own_out, own_lse
    if rows is not None:
        merge_into_rows(*parts_of_rows, rows, sinks=sinks)
        return rows.numbers
    assert out is not None
    return merge_partials(*parts_of_rows, out, sinks=sinks) if partial else out


def _num_splits(programs: int, device: torch.device, tile: Tile) -> int:
    """Parts of a row's tokens, so that a captured batch of few rows still fills the device.

    Only the batch is known when a graph is captured, not how long its suffixes will grow.
    """
    return max(1, min(_MOST_SPLITS, resident_programs(device, tile) // programs))
