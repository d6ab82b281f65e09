"""Products of groups of rows, each with a weight of its own, in FP8 by blocks: those of experts.

Weights are e4m3 with a scale for 128 x 128 numbers, rows of x with one for 128. A sum of 128
products is the matrix unit's; these are scaled and added up in float32. DeepSeek-AI, "DeepSeek-V3
Technical Report" (2412.19437), section 3.3. The weight's rows are the lines of the matrix unit, so
that a group of few rows wastes little of it, and x may be read through an index: tokens that
several experts want need not be copied.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

BLOCK = 128


@dataclass(frozen=True)
class Tile:
    """Rows of x in a program, beside 128 of a weight; 128 numbers of both are a stage."""

    rows: int
    num_stages: int
    weight_first: bool
    num_warps: int = 4


@triton.jit(do_not_specialize=["indexed"])  # one compilation for both products of an expert
def _groups_kernel(
    x_ptr, own_ptr, which_ptr, weight_desc, scales_ptr, ends_ptr, out_ptr,
    groups, columns, size, indexed,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUPS: tl.constexpr, WEIGHT_FIRST: tl.constexpr,
):  # fmt: skip
    """ends_ptr: [groups]; which_ptr: [T] rows of x, if indexed; GROUPS: a power of two.

    The tiles of a group begin at the number (its first row // ROWS + its place): numbers that grow
    by at least the tiles that it has, so that no program has to add up what the others have.
    """
    columns_of_blocks = columns // BLOCK
    tile = tl.program_id(0) // columns_of_blocks
    block = tl.program_id(0) % columns_of_blocks
    o = tl.arange(0, GROUPS)
    ends = tl.load(ends_ptr + o, mask=o < groups, other=0)
    before = (ends // ROWS + o + 1 <= tile) & (o < groups)
    group = tl.sum(before.to(tl.int32), 0)
    if group >= groups:
        return
    start = tl.load(ends_ptr + group - 1, mask=group > 0, other=0)
    end = tl.load(ends_ptr + group)
    row = start + (tile - start // ROWS - group) * ROWS
    if row >= end:
        return

    m = row + tl.arange(0, ROWS)
    real = m < end
    given = tl.load(which_ptr + m, mask=real & (indexed != 0), other=0)
    source = tl.where(indexed != 0, given, m.to(tl.int64))
    k = tl.arange(0, BLOCK)
    blocks = size // BLOCK
    x_ptrs = x_ptr + source[:, None] * size + k[None, :]
    own_ptrs = own_ptr + source * blocks
    scale_ptrs = scales_ptr + (group.to(tl.int64) * columns_of_blocks + block) * blocks
    first = group * columns + block * BLOCK
    if WEIGHT_FIRST:
        acc = tl.zeros([BLOCK, ROWS], tl.float32)
    else:
        acc = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in range(0, blocks):
        weight = weight_desc.load([first, i * BLOCK])
        x = tl.load(x_ptrs + i * BLOCK, mask=real[:, None], other=0.0)
        own = tl.load(own_ptrs + i, mask=real, other=0.0) * tl.load(scale_ptrs + i)
        if WEIGHT_FIRST:
            acc += tl.dot(weight, x.T) * own[None, :]
        else:
            acc += tl.dot(x, weight.T) * own[:, None]
    if WEIGHT_FIRST:
        acc = acc.T
    n = block * BLOCK + tl.arange(0, BLOCK)
    out_ptrs = out_ptr + m.to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=real[:, None])


def tile_for(rows: int, groups: int) -> Tile:
    """The tile for so many rows of all groups together."""
    each = rows / groups
    if each <= 8:
        return Tile(16, 5, True)
    if each <= 24:
        return Tile(32, 5, True)
    if each <= 64:
        return Tile(64, 4, False)
    return Tile(128, 6, False, 8)


def block_groups(
    x: torch.Tensor,
    own: torch.Tensor,
    which: torch.Tensor | None,
    weight: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Multiply rows that lie group by group, each group by a weight of its own: bfloat16 [T, N].

    Args:
        x, own: [R, K] in e4m3, and its scales [R, K / 128] in float32.
        which: [T] the row of x that each row is, int64; None where they are x's in their order.
        weight, scales: [G, N, K] in e4m3, and [G, N / 128, K / 128] in float32.
        ends: [G] the row after each group's last, int32. Rows behind the last group's are not
            written.
        tile: by default the one for so many rows.
    """
    groups, columns, size = weight.shape
    assert x.is_contiguous() and own.is_contiguous()
    assert weight.is_contiguous() and scales.is_contiguous() and ends.dtype == torch.int32
    assert columns % BLOCK == size % BLOCK == 0 and x.shape[1] == size
    assert own.shape == (len(x), size // BLOCK)
    assert scales.shape == (groups, columns // BLOCK, size // BLOCK)
    count = len(x) if which is None else len(which)
    out = torch.empty(count, columns, dtype=torch.bfloat16, device=x.device)
    if not count:
        return out
    tile = tile or tile_for(count, groups)
    indices = ends.new_empty(0, dtype=torch.int64) if which is None else which
    assert indices.dtype == torch.int64
    grid = ((count // tile.rows + groups) * (columns // BLOCK),)
    _groups_kernel[grid](
        x, own, indices,
        TensorDescriptor.from_tensor(weight.view(groups * columns, size), [BLOCK, BLOCK]),
        scales, ends, out, groups, columns, size, int(which is not None),
        ROWS=tile.rows, BLOCK=BLOCK, GROUPS=triton.next_power_of_2(groups),
        WEIGHT_FIRST=tile.weight_first, num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out
