"""Rows in e4m3 with a scale each, in one pass: a program has a row in its registers.

The compiler goes over a wide row twice, for it needs the largest number before it can write the
first one.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

_E4M3 = torch.float8_e4m3fn
LARGEST = torch.finfo(_E4M3).max
WIDEST = 32_768  # numbers of a row that a program's registers hold
_NUMBERS = 32  # of them for each thread


@dataclass(frozen=True)
class FP8Rows:
    """Rows in FP8, each with a scale.

    The largest number of each row becomes e4m3's largest, or where it is below `least` that. A row
    that holds NaN or an infinite number has a scale that is none.

    Args:
        numbers: [T, K] in e4m3.
        scales: [T, 1] float32; a row is its numbers times its scale.
        least: the least that a row's largest number is taken for.
    """

    numbers: torch.Tensor
    scales: torch.Tensor
    least: float

    @staticmethod
    def empty(count: int, size: int, device: torch.device, least: float) -> FP8Rows:
        assert size <= WIDEST
        numbers = torch.empty(count, size, dtype=_E4M3, device=device)
        scales = torch.empty(count, 1, dtype=torch.float32, device=device)
        return FP8Rows(numbers, scales, least)


def warps_for(numbers: int, each: int = _NUMBERS) -> int:
    """Warps of a program that has so many numbers of a row, `each` in a thread."""
    return min(32, max(1, numbers // (32 * each)))


@triton.jit
def in_e4m3(x, least, largest, dtype: tl.constexpr):
    """Turn x, a row in float32, into e4m3 numbers and their scale."""
    bits = tl.max(tl.abs(x).to(tl.int32, bitcast=True))  # of which NaN's are the largest
    top = bits.to(tl.float32, bitcast=True)
    scale = tl.maximum(top, least, propagate_nan=tl.PropagateNan.ALL) / largest
    return (x * (1.0 / scale)).to(dtype), scale


@triton.jit
def gate_by(gate, up):
    """Return silu(gate) * up, in float32."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _rows_kernel(
    x_ptr, up_ptr, numbers_ptr, scales_ptr, stride_x, stride_u, least, largest,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    real = o < SIZE
    # Read for the last time, where the next product wants its rows in the cache.
    x = tl.load(x_ptr + row * stride_x + o, mask=real, other=0.0,
                eviction_policy="evict_first").to(tl.float32)  # fmt: skip
    if GATED:
        up = tl.load(up_ptr + row * stride_u + o, mask=real, other=0.0,
                     eviction_policy="evict_first").to(tl.float32)  # fmt: skip
        x = gate_by(x, up)
    numbers, scale = in_e4m3(x, least, largest, numbers_ptr.dtype.element_ty)
    tl.store(numbers_ptr + row * SIZE + o, numbers, mask=real)
    tl.store(scales_ptr + row, scale)


def rows_of(x: torch.Tensor, least: float) -> FP8Rows:
    """Turn x [T, K] into FP8 rows; its rows are dense."""
    rows = FP8Rows.empty(len(x), x.shape[1], x.device, least)
    _write(rows, x, None)
    return rows


def gated_rows(gate: torch.Tensor, up: torch.Tensor, least: float) -> FP8Rows:
    """Turn silu(gate) * up into FP8 rows; gate, up: [T, K], whose rows are dense."""
    assert up.shape == gate.shape and up.stride(1) == 1
    rows = FP8Rows.empty(len(gate), gate.shape[1], gate.device, least)
    _write(rows, gate, up)
    return rows


def _write(rows: FP8Rows, x: torch.Tensor, up: torch.Tensor | None) -> None:
    assert x.stride(1) == 1
    count, size = x.shape
    block = triton.next_power_of_2(size)
    _rows_kernel[(count,)](
        x, x if up is None else up, rows.numbers, rows.scales,
        x.stride(0), 0 if up is None else up.stride(0), rows.least, LARGEST,
        SIZE=size, BLOCK=block, GATED=up is not None, num_warps=warps_for(block),
    )  # fmt: skip
