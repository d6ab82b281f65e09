"""Attention whose bits do not depend on the tree: tiles of 64 keys at absolute positions.

One kernel does everything. A program takes a band of lines (rows under one node, times the query
heads of a KV head) over some whole tiles, from the state (acc, m, total) in float32 that was left
behind before, and leaves its own. A level of the tree is a launch: the rows under a node read its
whole tiles together. A tile in which the node ends is read by each child. The last launch reads
what is left up to each row, and writes the result. So every row sums up the same tiles in the same
order, whoever reads them with it; that the kinds of products inside round alike is what
`python -m benchmarks tile-order` asks of a card.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from sharegen.kernels.attention_plan import Staging
from sharegen.kernels.layout import Int32, SharedLayout
from sharegen.kernels.online_softmax import scores, weights
from sharegen.kernels.reference_absolute import TILE, Paths, listed_paths
from sharegen.kernels.tiles import padded, precision
from sharegen.kernels.transfer import send

_FIELDS = tl.constexpr(5)  # first of `rows`, rows, where the path begins, first key, end of keys
_KEYS = tl.constexpr(TILE)
_MANY_LINES, _FEW_LINES = 64, 16
_ALIGNMENT = 4  # int32s: a launch finds each array at 16 bytes


@triton.jit
def sum_of_pairs(p):
    """[M] of p [M, 64]: neighbours first, then neighbouring sums, however they lie in registers."""
    LINES: tl.constexpr = p.shape[0]
    p = _halved(p, LINES, 32)
    p = _halved(p, LINES, 16)
    p = _halved(p, LINES, 8)
    p = _halved(p, LINES, 4)
    p = _halved(p, LINES, 2)
    first, second = tl.split(p)
    return first + second


@triton.jit
def _halved(p, LINES: tl.constexpr, N: tl.constexpr):
    first, second = tl.split(p.reshape(LINES, N, 2))
    return first + second


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
        p, decay, m = weights(m, s, factor, True)
        total = total * decay + sum_of_pairs(p)
        acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    written = alive[:, None] & kept
    if LAST:
        out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + p_acc, out.to(out_ptr.dtype.element_ty), mask=written)
    else:
        tl.store(acc_ptr + p_acc, acc, mask=written)
        tl.store(m_ptr + line, m, mask=alive)
        tl.store(total_ptr + line, total, mask=alive)


class Items(NamedTuple):
    """What a launch computes: listed [room, 5] int32, of which the first `number` [1] are items."""

    number: torch.Tensor
    listed: torch.Tensor


@dataclass(frozen=True)
class AbsolutePlan:
    """What a batch's rows read together, level by level, and how they find the rest.

    paths: where what is above rows lies. levels: of each launch before the last. rows: in tree
    order. last: of the last launch, or None where each row reads its own blocks.
    """

    paths: Paths
    levels: Sequence[Items]
    rows: torch.Tensor
    last: Items | None


class DecodingPlan:
    """The plan of decoding steps, in buffers that stay where they are while what they hold changes.

    So a captured step reads the new plan. `generation` grows where a buffer was too small.

    Args:
        group: query heads for each KV head.
        block_size: of the KV cache.
        max_rows: the most rows of a step.
        device: where the buffers lie.
    """

    def __init__(self, group: int, block_size: int, max_rows: int, device: torch.device) -> None:
        self._group, self._block_size, self._max_rows = group, block_size, max_rows
        self._device = device
        self.generation = 0
        self._room = (0, 0, 0)
        self._grow((1, 2 * -(-max_rows * group // _MANY_LINES), 64 * max_rows))

    def update(self, layout: SharedLayout) -> None:
        """Send the plan of a layout, on the stream of the steps."""
        slots, start = listed_paths(layout, self._max_rows, self._block_size)
        levels = _levels(layout, start, self._group)
        self._grow((len(levels), max(map(len, levels), default=0), len(slots)))
        staging = self._staging.next()
        counts, of_start, of_rows, of_slots = self._spans[:4]
        staging[counts] = 0
        staging[of_start] = start
        staging[of_rows][: len(layout.order)] = layout.order
        staging[of_slots][: len(slots)] = slots
        for i, items in enumerate(levels):
            staging[i] = len(items)
            staging[self._spans[4 + i]][: len(items) * _FIELDS.value] = np.ravel(items)
        self._staging.send(self._buffer)

    def _grow(self, asked: tuple[int, int, int]) -> None:
        if all(a <= r for a, r in zip(asked, self._room, strict=True)):
            return
        self._room = tuple(  # type: ignore[assignment]
            r if a <= r else max(a, r + r // 2) for a, r in zip(asked, self._room, strict=True)
        )
        levels, items, slots = self._room
        sizes = [levels, self._max_rows, self._max_rows, slots, *[items * _FIELDS.value] * levels]
        ends = np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes])
        starts = (int(end) for end in [0, *ends[:-1]])
        self._spans = [slice(at, at + size) for at, size in zip(starts, sizes, strict=True)]
        self._buffer = torch.zeros(int(ends[-1]), dtype=torch.int32, device=self._device)
        self._staging = Staging(len(self._buffer), self._device)
        counts, start, rows, paths, *listed = (self._buffer[span] for span in self._spans)
        of_levels = [
            Items(counts[i : i + 1], each.view(items, _FIELDS.value))
            for i, each in enumerate(listed)
        ]
        self.plan = AbsolutePlan(Paths(paths, start), of_levels, rows, None)
        self.generation += 1


def _levels(layout: SharedLayout, start: Int32, group: int) -> list[list[tuple[int, ...]]]:
    """The items of each level of the tree, which read a node's whole tiles.

    start: where each row's path begins.
    """
    most = max(1, _MANY_LINES // group)
    by_level: dict[int, list[tuple[int, ...]]] = {}
    for node in range(layout.num_nodes):
        first, last = int(layout.row_start[node]), int(layout.row_end[node])
        begin = int(layout.position[node]) // TILE * TILE
        end = int(layout.position[node] + layout.length[node]) // TILE * TILE
        if begin == end:
            continue
        items = by_level.setdefault(int(layout.level[node]), [])
        for i in range(first, last, most):
            path = int(start[layout.order[i]])
            items.append((i, min(most, last - i), path, begin, end))
    return [by_level[level] for level in sorted(by_level)]


def prefill_plan(
    layout: SharedLayout,
    chunk_starts: Sequence[int],
    slots: torch.Tensor,
    group: int,
    block_size: int,
) -> AbsolutePlan:
    """The plan of a prefill batch of chunks, whose tokens go to the slots [T].

    group: query heads for each KV head. The chunks' own tokens lie at the end of paths of their
    own.
    """
    device, num_rows = slots.device, chunk_starts[-1]
    above_slots, start = listed_paths(layout, num_rows, block_size)
    levels = _levels(layout, start, group)
    above = np.zeros(num_rows, np.int32)
    for node in range(layout.num_nodes):
        below = layout.order[layout.row_start[node] : layout.row_end[node]]
        above[below] = np.maximum(above[below], layout.position[node] + layout.length[node])
    most = max(1, _MANY_LINES // group)
    # Tokens of the batch are named by numbers below 0, until their slots take the place of these.
    parts, length = [above_slots], len(above_slots)
    items: list[tuple[int, ...]] = []
    for first, end in pairwise(chunk_starts):
        prefix, path = int(above[first]), int(start[first])
        parts += [above_slots[path : path + prefix], -1 - np.arange(first, end, dtype=np.int32)]
        for i in range(first, end, most):
            count = min(most, end - i)
            begin = prefix // TILE * TILE
            items.append((num_rows + i, count, length, begin, prefix + i + count - first))
        length += prefix + end - first
    rows = np.zeros(2 * num_rows, np.int32)
    rows[: len(layout.order)] = layout.order
    rows[num_rows:] = np.arange(num_rows)
    lists = [np.array(each, np.int32).reshape(-1, _FIELDS.value) for each in (*levels, items)]
    counts = np.array([[len(each)] for each in lists], np.int32)
    paths, starts, of_rows, numbers, *listed = send(
        device, np.concatenate(parts).astype(np.int32), start, rows, counts, *lists
    )
    own = (-1 - paths).clamp(min=0).long()
    paths = torch.where(paths < 0, slots.to(torch.int32)[own], paths)
    launches = list(map(Items, numbers.unbind(), listed))
    return AbsolutePlan(Paths(paths, starts), launches[:-1], of_rows, launches[-1])


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
        lines = _FEW_LINES if of_rows else _MANY_LINES
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
            PRECISION=precision(q.dtype), num_warps=4,
        )  # fmt: skip

    for items in plan.levels:
        launch(items, False)
    launch(plan.last, True)
    return out
