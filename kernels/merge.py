"""Partials are merged: softmax over a row's whole context from the parts (Hydragen, equation 5)."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels.fp8_rows import LARGEST, WIDEST, FP8Rows, in_e4m3, warps_for
from sharegen.kernels.online_softmax import finish, fold, fold_sink
from sharegen.kernels.tiles import padded

_HEADS = 8  # of a program that merges a part of a row
_NUMBERS = 64  # for each thread of one that merges a whole row


@triton.jit
def _merged(
    shared_out_ptr, shared_lse_ptr, partial_start_ptr, own_out_ptr, own_lse_ptr, sinks_ptr,
    num_own, row, head, o_dv, alive, whole,
    NUM_HEADS: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_DV: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """[BLOCK_H, BLOCK_DV] of the row's heads; 0 where there are none."""
    first = tl.load(partial_start_ptr + row)
    last = tl.load(partial_start_ptr + row + 1)
    acc = tl.zeros([BLOCK_H, BLOCK_DV], tl.float32)
    m = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    o_own = row.to(tl.int64) * num_own * NUM_HEADS + head
    for i in range(num_own):
        offset = o_own + i * NUM_HEADS
        lse = tl.load(own_lse_ptr + offset, mask=alive, other=float("-inf"))
        p_own = own_out_ptr + (offset * VALUE_SIZE)[:, None] + o_dv[None, :]
        acc, m, total = fold(
            acc, m, total, tl.load(p_own, mask=whole, other=0.0).to(tl.float32), lse
        )
    for i in range(first, last):
        offset = tl.cast(i, tl.int64) * NUM_HEADS + head
        lse = tl.load(shared_lse_ptr + offset, mask=alive, other=float("-inf"))
        p_shared = shared_out_ptr + (offset * VALUE_SIZE)[:, None] + o_dv[None, :]
        acc, m, total = fold(
            acc, m, total, tl.load(p_shared, mask=whole, other=0.0).to(tl.float32), lse
        )
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head, mask=alive, other=float("-inf")).to(tl.float32)
        acc, m, total = fold_sink(acc, m, total, sink)
    out, _ = finish(acc, m, total)
    return out


@triton.jit(do_not_specialize=["num_own"])
def _merge_kernel(
    shared_out_ptr, shared_lse_ptr, partial_start_ptr, own_out_ptr, own_lse_ptr, sinks_ptr,
    out_ptr, stride_or, stride_oh, num_own,
    NUM_HEADS: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_DV: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    o_dv = tl.arange(0, BLOCK_DV)
    alive = head < NUM_HEADS
    whole = alive[:, None] & (o_dv < VALUE_SIZE)[None, :]
    out = _merged(
        shared_out_ptr, shared_lse_ptr, partial_start_ptr, own_out_ptr, own_lse_ptr, sinks_ptr,
        num_own, row, head, o_dv, alive, whole, NUM_HEADS, VALUE_SIZE, BLOCK_H, BLOCK_DV, HAS_SINKS,
    )  # fmt: skip
    p_out = out_ptr + row.to(tl.int64) * stride_or + (head * stride_oh)[:, None] + o_dv[None, :]
    tl.store(p_out, out.to(out_ptr.dtype.element_ty), mask=whole)


@triton.jit(do_not_specialize=["num_own"])
def _merge_rows_kernel(
    shared_out_ptr, shared_lse_ptr, partial_start_ptr, own_out_ptr, own_lse_ptr, sinks_ptr,
    numbers_ptr, scales_ptr, num_own, least, largest,
    NUM_HEADS: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_DV: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.arange(0, BLOCK_H)
    o_dv = tl.arange(0, BLOCK_DV)
    alive = head < NUM_HEADS
    whole = alive[:, None] & (o_dv < VALUE_SIZE)[None, :]
    out = _merged(
        shared_out_ptr, shared_lse_ptr, partial_start_ptr, own_out_ptr, own_lse_ptr, sinks_ptr,
        num_own, row, head, o_dv, alive, whole, NUM_HEADS, VALUE_SIZE, BLOCK_H, BLOCK_DV, HAS_SINKS,
    )  # fmt: skip
    out = out.to(own_out_ptr.dtype.element_ty).to(tl.float32)  # as when it is written in between
    numbers, scale = in_e4m3(out, least, largest, numbers_ptr.dtype.element_ty)
    o_numbers = row.to(tl.int64) * (NUM_HEADS * VALUE_SIZE) + (head * VALUE_SIZE)[:, None]
    tl.store(numbers_ptr + o_numbers + o_dv[None, :], numbers, mask=whole)
    tl.store(scales_ptr + row, scale)


def merge_partials(
    shared_out: torch.Tensor,
    shared_lse: torch.Tensor,
    partial_start: torch.Tensor,
    own_out: torch.Tensor,
    own_lse: torch.Tensor,
    out: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write each row's merged partials to `out`, and return it.

    A partial of no keys has lse = -inf and may hold anything as out; a row of nothing becomes 0.

    Args:
        shared_out: [partials, num_heads, value_size], of the shared phase.
        shared_lse: [partials, num_heads].
        partial_start: [rows + 1]; a row has those from its own entry to the next.
        own_out: [rows, n, num_heads, value_size], the row's other n partials.
        own_lse: [rows, n, num_heads].
        out: [rows, num_heads, value_size].
        sinks: [num_heads], one more logit without a value.
    """
    num_rows, num_heads, value_size = out.shape
    _check(shared_out, shared_lse, partial_start, own_out, own_lse)
    assert own_out.shape[::2] == (num_rows, num_heads) and own_out.shape[3] == value_size
    assert out.stride(-1) == 1
    block_h = min(_HEADS, 1 << (num_heads - 1).bit_length())
    _merge_kernel[(num_rows, triton.cdiv(num_heads, block_h))](
        shared_out, shared_lse, partial_start, own_out, own_lse,
        own_lse if sinks is None else sinks, out, out.stride(0), out.stride(1),
        own_lse.shape[1], NUM_HEADS=num_heads, VALUE_SIZE=value_size,
        BLOCK_H=block_h, BLOCK_DV=padded(value_size), HAS_SINKS=sinks is not None,
        num_warps=4,
    )  # fmt: skip
    return out


def merge_into_rows(
    shared_out: torch.Tensor,
    shared_lse: torch.Tensor,
    partial_start: torch.Tensor,
    own_out: torch.Tensor,
    own_lse: torch.Tensor,
    rows: FP8Rows,
    *,
    sinks: torch.Tensor | None = None,
) -> None:
    """Write what `merge_partials` gives to `rows`, whose K is num_heads * value_size.

    It is rounded to own_out's dtype first, as it is when it is written down in between.
    """
    num_rows, _, num_heads, value_size = own_out.shape
    _check(shared_out, shared_lse, partial_start, own_out, own_lse)
    assert rows.numbers.shape == (num_rows, num_heads * value_size)
    block = whole_row(num_heads, value_size)
    assert block is not None
    _merge_rows_kernel[(num_rows,)](
        shared_out, shared_lse, partial_start, own_out, own_lse,
        own_lse if sinks is None else sinks, rows.numbers, rows.scales,
        own_lse.shape[1], rows.least, LARGEST, NUM_HEADS=num_heads, VALUE_SIZE=value_size,
        BLOCK_H=block[0], BLOCK_DV=block[1], HAS_SINKS=sinks is not None,
        num_warps=warps_for(block[0] * block[1], _NUMBERS),
    )  # fmt: skip


def whole_row(num_heads: int, value_size: int) -> tuple[int, int] | None:
    """The tile that holds all heads of a row; None where a program's registers do not."""
    block = 1 << (num_heads - 1).bit_length(), padded(value_size)
    return block if block[0] * block[1] <= WIDEST else None


def _check(
    shared_out: torch.Tensor,
    shared_lse: torch.Tensor,
    partial_start: torch.Tensor,
    own_out: torch.Tensor,
    own_lse: torch.Tensor,
) -> None:
    assert own_out.shape[:3] == own_lse.shape and shared_out.shape[1:] == own_out.shape[2:]
    for tensor in (shared_out, shared_lse, partial_start, own_out, own_lse):
        assert tensor.is_contiguous()
