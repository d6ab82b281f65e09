"""A gated activation, silu(gate) * up, and its rows in e4m3: one pass, with a row in registers.

The compiler goes over a row this wide twice, for it needs the largest number before it can write
the first one.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

WIDEST = 32_768  # numbers of a row that a program's registers hold
_NUMBERS = 32  # of them for each thread


@triton.jit
def _gated_rows_kernel(
    gate_ptr, up_ptr, rows_ptr, scales_ptr, stride_g, stride_u, least, largest_number,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, BLOCK)
    real = o < SIZE
    # Read for the last time, where the next product wants its rows in the cache.
    gate = tl.load(gate_ptr + row * stride_g + o, mask=real, other=0.0,
                   eviction_policy="evict_first").to(tl.float32)  # fmt: skip
    up = tl.load(up_ptr + row * stride_u + o, mask=real, other=0.0,
                 eviction_policy="evict_first").to(tl.float32)  # fmt: skip
    x = gate / (1.0 + tl.exp(-gate)) * up
    bits = tl.max(tl.abs(x).to(tl.int32, bitcast=True), 0)  # of which NaN's are the largest
    largest = bits.to(tl.float32, bitcast=True)
    scale = tl.maximum(largest, least, propagate_nan=tl.PropagateNan.ALL) / largest_number
    numbers = (x * (1.0 / scale)).to(rows_ptr.dtype.element_ty)
    tl.store(rows_ptr + row * SIZE + o, numbers, mask=real)
    tl.store(scales_ptr + row, scale)


def gated_rows(
    gate: torch.Tensor, up: torch.Tensor, least: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """gate, up: [T, K], of rows that are dense -> (e4m3 [T, K], scales [T, 1] in float32).

    The largest number of each row becomes e4m3's largest, or where it is below `least` that.
    A row that holds NaN or an infinite number has a scale that is none.
    """
    count, size = gate.shape
    assert up.shape == gate.shape and gate.stride(1) == up.stride(1) == 1 and size <= WIDEST
    rows = torch.empty(count, size, dtype=torch.float8_e4m3fn, device=gate.device)
    scales = torch.empty(count, 1, dtype=torch.float32, device=gate.device)
    block = triton.next_power_of_2(size)
    _gated_rows_kernel[(count,)](
        gate, up, rows, scales, gate.stride(0), up.stride(0), least, torch.finfo(rows.dtype).max,
        SIZE=size, BLOCK=block, num_warps=min(32, max(1, block // (32 * _NUMBERS))),
    )  # fmt: skip
    return rows, scales
