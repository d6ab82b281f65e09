"""A linear layer of few rows whose sums are not split: one program goes over all of K, in order.

For few rows a library cuts a long sum into parts, so that all processors have work, and adds the
parts up: other last bits than those of many rows, whose sums it makes in their order, 16 numbers
at a time. This is that order at any number of rows. The matrix unit takes 64 lines at a time: of
the weight's rows, and then 16 of x or more go by; or of x's, and then 16 of the weight's or more.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from sharegen.kernels.tiles import precision

_ALIGNMENT = 16  # bytes, of what the copy engine reads


@dataclass(frozen=True)
class Tile:
    """rows x columns of a program's result, and how it goes over the sum: `depth` numbers at once.

    weight_first: whether the weight's rows, and not x's, are the lines of the matrix unit.
    """

    rows: int
    columns: int
    depth: int
    num_stages: int
    weight_first: bool
    num_warps: int = 4


@triton.jit
def _product_kernel(
    x_desc, weight_desc, bias_ptr, out_ptr, rows, columns, size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    WEIGHT_FIRST: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS
    row = tl.program_id(1) * ROWS
    if WEIGHT_FIRST:
        acc = tl.zeros([COLUMNS, ROWS], tl.float32)
    else:
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in range(0, size, DEPTH):
        weight = weight_desc.load([column, k])
        x = x_desc.load([row, k])
        if WEIGHT_FIRST:
            acc = tl.dot(weight, x.T, acc, input_precision=PRECISION)
        else:
            acc = tl.dot(x, weight.T, acc, input_precision=PRECISION)
    if WEIGHT_FIRST:
        acc = acc.T
    m = row + tl.arange(0, ROWS)
    n = column + tl.arange(0, COLUMNS)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    where = m.to(tl.int64)[:, None] * columns + n[None, :]
    real = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(out_ptr + where, acc.to(out_ptr.dtype.element_ty), mask=real)


def tiles_for(rows: int, size: int, dtype: torch.dtype) -> list[Tile]:
    """The tiles that may be best for so many rows of `size` numbers; none where these do not lie as
    the copy engine reads them.
    """
    if size * dtype.itemsize % _ALIGNMENT or dtype.itemsize > 2:
        return []
    if rows <= 32:
        lines = max(16, triton.next_power_of_2(rows))
        return [Tile(lines, 64, 256, 4, True), Tile(lines, 64, 128, 8, True)]
    if rows <= 64:
        return [Tile(64, 32, 128, 8, False), Tile(64, 16, 128, 8, False)]
    if rows <= 128:
        return [Tile(128, 32, 128, 5, False, 8), Tile(64, 64, 128, 6, False)]
    return [Tile(128, 64, 64, 8, False, 8), Tile(64, 128, 64, 8, False)]


def unsplit_product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tile: Tile
) -> torch.Tensor:
    """Return x @ weight.T + bias [T, N]; x: [T, K], weight: [N, K], bias: [N] or None."""
    x = x.contiguous()
    (rows, size), columns = x.shape, len(weight)
    out = x.new_empty(rows, columns)
    grid = triton.cdiv(columns, tile.columns), triton.cdiv(rows, tile.rows)
    _product_kernel[grid](
        TensorDescriptor.from_tensor(x, [tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [tile.columns, tile.depth]),
        weight if bias is None else bias, out, rows, columns, size,
        ROWS=tile.rows, COLUMNS=tile.columns, DEPTH=tile.depth, WEIGHT_FIRST=tile.weight_first,
        HAS_BIAS=bias is not None, PRECISION=precision(x.dtype),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out
