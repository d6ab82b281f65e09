"""Attention whose bits do not depend on the tree: tiles of 64 keys at absolute positions.

One kernel does everything, but that on Hopper cards the beginnings of prompts, which hold most of
what is shared, have one of their own (`absolute_hopper.py`). A program takes a band of lines (rows
under one node, times the query heads of a KV head) over some whole tiles, from the state (acc, m,
total) in float32 that was left behind before, and leaves its own. A level of the tree is a launch:
the rows under a node read its whole tiles together. A tile in which the node ends is read by each
child. The last launch reads what is left up to each row, and writes the result. So every row sums
up the same tiles in the same order, whoever reads them with it. All sums are products of matrices,
a tile's weights by ones, for their order is the hardware's, however numbers lie in registers; that
the kinds of products round alike is what `python -m benchmarks tile-order` asks of a card.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels.absolute_plan import FIELDS, LINES, AbsolutePlan, Items
from sharegen.kernels.online_softmax import scores, weights
from sharegen.kernels.reference_absolute import TILE
from sharegen.kernels.tiles import padded, precision

_FIELDS = tl.constexpr(FIELDS)
_KEYS = tl.constexpr(TILE)
_COLUMNS = tl.constexpr(16)  # of ones, the fewest that a product takes
_FEW_LINES = 16
_SLACK = 8.0  # as in `shared_hopper.py`: m stays until a score is so far above it, in log2


@triton.jit
def _absolute_kernel(
    q_ptr, k_ptr, v_ptr, count_ptr, items_ptr, rows_ptr, slots_ptr, start_ptr, tables_ptr,
    prefix_ptr, position_ptr, acc_ptr, m_ptr, total_ptr, out_ptr,
    stride_qr, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_tr, scale, softcap,
    NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    OWN: tl.constexpr, LAST: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
    SLACK: tl.constexpr,
):  # fmt: skip
    """OWN: an item is a row and its own blocks; LAST: the result is written, not the state."""
    NUM_HEADS: tl.constexpr = NUM_KV_HEADS * GROUP
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    item = tl.program_id(0) // NUM_KV_HEADS
    if not OWN:  # noqa: SIM102 - decided when compiled, what is below by the plan
        if item >= tl.load(count_ptr):  # a captured launch has room for more
            return
    o_m = tl.arange(0, BLOCK_M)
    o_n = tl.arange(0, _KEYS)
    o_dk = tl.arange(0, BLOCK_DK)
    o_dv = tl.arange(0, BLOCK_DV)
    head = kv_head * GROUP + o_m % GROUP
    if OWN:
        row = (o_m * 0 + item).to(tl.int64)
        alive = o_m < GROUP
        position = tl.load(position_ptr + row)
        prefix = tl.load(prefix_ptr + item)
        path = tl.load(start_ptr + item)
        begin = prefix // _KEYS * _KEYS
        end = tl.load(position_ptr + item) + 1
    else:
        item_ptr = items_ptr + item * _FIELDS
        first_row = tl.load(item_ptr)
        alive = o_m < tl.load(item_ptr + 1) * GROUP
        path = tl.load(item_ptr + 2)
        begin = tl.load(item_ptr + 3)
        end = tl.load(item_ptr + 4)
        row = tl.load(rows_ptr + first_row + o_m // GROUP, mask=alive, other=0).to(tl.int64)
        position = tl.load(position_ptr + row, mask=alive, other=0)
        prefix = end
    line = row * NUM_HEADS + head
    p_q = q_ptr + (row * stride_qr + head * stride_qh)[:, None] + o_dk[None, :]
    q = tl.load(p_q, mask=alive[:, None] & (o_dk < KEY_SIZE)[None, :], other=0.0)
    goes_on = alive & (begin > 0)
    kept = (o_dv < VALUE_SIZE)[None, :]
    p_acc = (line * VALUE_SIZE)[:, None] + o_dv[None, :]
    acc = tl.load(acc_ptr + p_acc, mask=goes_on[:, None] & kept, other=0.0)
    m = tl.load(m_ptr + line, mask=goes_on, other=float("-inf"))
    total = tl.load(total_ptr + line, mask=goes_on, other=0.0)
    total = total[:, None] + tl.zeros([BLOCK_M, _COLUMNS], tl.float32)
    ones = tl.full([_KEYS, _COLUMNS], 1.0, q.dtype)
    for n in range(begin, end, _KEYS):
        key = n + o_n
        real = key < end
        slot = tl.load(slots_ptr + path + key, mask=real & (key < prefix), other=0)
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        if OWN:
            own = key - prefix
            p_table = tables_ptr + item.to(tl.int64) * stride_tr + own // BLOCK_SIZE
            block = tl.where(own < 0, block, tl.load(p_table, mask=real & (own >= 0), other=0))
            offset = tl.where(own < 0, offset, own % BLOCK_SIZE)
        block = block.to(tl.int64)
        p_k = k_ptr + (block * stride_kb + offset * stride_kt)[:, None] + kv_head * stride_kh
        p_v = v_ptr + (block * stride_vb + offset * stride_vt)[:, None] + kv_head * stride_vh
        k_seen = real[:, None] & (o_dk < KEY_SIZE)[None, :]
        k = tl.load(p_k + o_dk[None, :], mask=k_seen, other=0.0)
        v = tl.load(p_v + o_dv[None, :], mask=real[:, None] & kept, other=0.0)
        s, factor = scores(q, k, scale, softcap, HAS_SOFTCAP, PRECISION)
        s = tl.where(real[None, :] & (key[None, :] <= position[:, None]), s, float("-inf"))
        p, decay, m = weights(m, s, factor, True, SLACK)
        p = p.to(v.dtype)
        total = tl.dot(p, ones, total * decay[:, None], input_precision=PRECISION)
        acc = tl.dot(p, v, acc * decay[:, None], input_precision=PRECISION)
    total = tl.max(total, 1)  # all are equal
    written = alive[:, None] & kept
    if LAST:
        out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + p_acc, out.to(out_ptr.dtype.element_ty), mask=written)
    else:
        tl.store(acc_ptr + p_acc, acc, mask=written)
        tl.store(m_ptr + line, m, mask=alive)
        tl.store(total_ptr + line, total, mask=alive)


def absolute_attention(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, plan: AbsolutePlan,
    position: torch.Tensor, block_tables: torch.Tensor | None = None,
    prefix_length: torch.Tensor | None = None, *, scale: float, softcap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attend from rows q [rows, num_heads, key_size], each to the keys up to its position.

    k_cache, v_cache: [blocks, block_size, num_kv_heads, *], with the step's own tokens in them.
    block_tables, prefix_length: in decoding, as the other kernels take them.

    Returns [rows, num_heads, value_size].
    """
    rows, heads, key_size = q.shape
    kv_heads, value_size = k_cache.shape[2], v_cache.shape[3]
    assert q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    acc = q.new_empty(rows, heads, value_size, dtype=torch.float32)
    m, total = acc.new_empty(2, rows, heads)
    out = q.new_zeros(rows, heads, value_size)  # a padded batch has rows without a chunk
    own = plan.last is None
    assert own == (block_tables is not None and prefix_length is not None)

    def launch(items: Items | None, last: bool) -> None:
        of_rows = items is None
        lines = _FEW_LINES if of_rows else LINES
        group = heads // kv_heads
        nothing = plan.rows
        count, listed = (nothing, nothing) if items is None else items
        if not (programs := rows if items is None else len(listed)):
            return
        _absolute_kernel[(programs * kv_heads,)](
            q, k_cache, v_cache, count, listed, plan.rows, plan.paths.slots, plan.paths.start,
            nothing if block_tables is None else block_tables,
            nothing if prefix_length is None else prefix_length,
            position, acc, m, total, out,
            *q.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
            0 if block_tables is None else block_tables.stride(0), scale, softcap or 1.0,
            NUM_KV_HEADS=kv_heads, GROUP=group, KEY_SIZE=key_size,
            VALUE_SIZE=value_size, BLOCK_SIZE=k_cache.shape[1],
            BLOCK_M=max(lines, triton.next_power_of_2(group)),
            BLOCK_DK=padded(key_size), BLOCK_DV=padded(value_size),
            OWN=of_rows, LAST=last, HAS_SOFTCAP=softcap is not None,
            PRECISION=precision(q.dtype), SLACK=_SLACK, num_warps=2 if of_rows else 8,
        )  # fmt: skip

    beginnings, *levels = plan.levels
    from sharegen.kernels.absolute_hopper import launch_on_hopper, suits_hopper

    if softcap is None and suits_hopper(k_cache, v_cache, heads // kv_heads):
        launch_on_hopper(
            q, k_cache, v_cache, *beginnings, plan.rows, plan.paths.slots, (acc, m, total), scale,
            _SLACK,
        )  # fmt: skip
    else:
        launch(beginnings, False)
    for items in levels:
        launch(items, False)
    launch(plan.last, True)
    return out
