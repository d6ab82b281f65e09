"""Numbers in e4m3 with a scale for each 128 of a row, in one pass: a program has them in registers.

The compiler goes over them twice, and a third time to bring the scales into the order of columns
that the library's product reads. DeepSeek-AI, "DeepSeek-V3 Technical Report" (2412.19437),
section 3.3.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sharegen.kernels.fp8_rows import LARGEST, gate_by

GROUP = 128
_MOST_GROUPS = 32  # of a program, whose threads have 32 numbers each


@dataclass(frozen=True)
class FP8Groups:
    """Rows in FP8, each 128 numbers with a scale; the last ones of a row may be fewer.

    The largest of 128 numbers becomes e4m3's largest, or where it is below `least` that. Among them
    NaN or an infinite number makes a scale that is none.

    Args:
        numbers: [R, K] in e4m3.
        scales: float32 [R, K / 128], or [K / 128, R] by columns.
        by_columns: which of the two.
        least: the least that the largest of 128 numbers is taken for.
    """

    numbers: torch.Tensor
    scales: torch.Tensor
    by_columns: bool
    least: float


@triton.jit
def _group_scales_kernel(
    x_ptr, up_ptr, numbers_ptr, scales_ptr, count, size, groups,
    stride_x, stride_u, stride_row, stride_group, least, largest,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    g = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    o = g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = o < size
    real = inside & (row < count)
    # Read for the last time, where the next product wants its rows in the cache.
    x = tl.load(x_ptr + row * stride_x + o, mask=real, other=0.0,
                eviction_policy="evict_first").to(tl.float32)  # fmt: skip
    if GATED:
        up = tl.load(up_ptr + row * stride_u + o, mask=real, other=0.0,
                     eviction_policy="evict_first").to(tl.float32)  # fmt: skip
        x = gate_by(x, up)
    bits = tl.max(tl.abs(x).to(tl.int32, bitcast=True), 1)  # of which NaN's are the largest
    top = bits.to(tl.float32, bitcast=True)
    scale = tl.div_rn(tl.maximum(top, least, propagate_nan=tl.PropagateNan.ALL), largest)
    numbers = tl.div_rn(x, tl.broadcast_to(scale[:, None], (GROUPS, GROUP)))
    tl.store(numbers_ptr + row * size + o, numbers.to(numbers_ptr.dtype.element_ty), mask=inside)
    tl.store(scales_ptr + row * stride_row + g * stride_group, scale, mask=g < groups)


def groups_of(
    x: torch.Tensor,
    least: float,
    *,
    up: torch.Tensor | None = None,
    by_columns: bool = False,
    rows: int | None = None,
) -> FP8Groups:
    """Turn x [T, K] into FP8, or silu(x) * up.

    Args:
        x: its rows are dense, and so are those of `up`, which is [T, K] as well.
        least: of `FP8Groups`.
        by_columns: how scales are to lie.
        rows: so many are made, those behind the last of x of zeros; by default as many as x has.
    """
    assert x.stride(1) == 1 and (up is None or (up.shape == x.shape and up.stride(1) == 1))
    count, size = x.shape
    rows = count if rows is None else rows
    assert rows >= count
    groups = triton.cdiv(size, GROUP)
    numbers = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    sides = (groups, rows) if by_columns else (rows, groups)
    scales = torch.empty(sides, dtype=torch.float32, device=x.device)
    stride_row, stride_group = (1, rows) if by_columns else (groups, 1)
    each = min(_MOST_GROUPS, triton.next_power_of_2(groups))
    if rows:
        _group_scales_kernel[(rows, triton.cdiv(groups, each))](
            x, x if up is None else up, numbers, scales, count, size, groups,
            x.stride(0), 0 if up is None else up.stride(0), stride_row, stride_group,
            least, LARGEST,
            GROUPS=each, GROUP=GROUP, GATED=up is not None, num_warps=max(1, each // 8),
        )  # fmt: skip
    return FP8Groups(numbers, scales, by_columns, least)
