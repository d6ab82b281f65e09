"""Products of groups of rows, each with a weight of its own, stored in MXFP4: those of experts.

A weight has four bits for a number (e2m1) and a power of two for 32 of a row, as the OCP
microscaling formats have it. They stay so in memory; a program widens what it multiplies. In
bfloat16 that rounds nothing: the product is that of the dequantised weight. Where the matrix unit
wants a weight in registers it gets it there, with no way through shared memory, which the order of
its numbers (`fp4_words.py`) is for.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sharegen.kernels.fp4_words import GROUP, STAGE

_WORDS = STAGE // 4

# Two words of 16 bits become two bfloat16 four times: bits 12 to 15 of each half are what is left
# of one number when it is shifted there, its sign stays, and the other three become the last of
# the exponent and the first of the fraction. That is the number divided by 2^126, which the factor
# makes good, for the zeros and halves as well that e2m1 has below its smallest exponent.
_WIDEN = tl.constexpr("""
{
.reg .b32 a, s;
shl.b32 a, $4, 6; shl.b32 s, $4, 12; and.b32 s, s, 0x80008000;
lop3.b32 a, a, 0x01C001C0, s, 0xEA; mul.rn.bf16x2 $0, a, $5;
shl.b32 a, $4, 2; shl.b32 s, $4, 8; and.b32 s, s, 0x80008000;
lop3.b32 a, a, 0x01C001C0, s, 0xEA; mul.rn.bf16x2 $1, a, $6;
shr.u32 a, $4, 2; shl.b32 s, $4, 4; and.b32 s, s, 0x80008000;
lop3.b32 a, a, 0x01C001C0, s, 0xEA; mul.rn.bf16x2 $2, a, $7;
shr.u32 a, $4, 6; and.b32 s, $4, 0x80008000;
lop3.b32 a, a, 0x01C001C0, s, 0xEA; mul.rn.bf16x2 $3, a, $8;
}
""")

# It does nothing to a sum but want it, so each turn of the loop ends when its products have ended.
# Without it Triton lets the last one run on into the next turn, which writes the registers that the
# product may still read (seen with Triton 3.6 and 3.7.1 and their ptxas).
_AS_IT_IS = tl.constexpr("// $0 is $1")


@dataclass(frozen=True)
class Tile:
    """Rows of x and lines of a weight in a program."""

    rows: int
    lines: int
    num_warps: int
    num_stages: int


@triton.jit
def _factor(scales, PLACE: tl.constexpr):
    """2^126 times one of the four scales in each word [N], as bfloat16 [N, 1]."""
    return (
        ((((scales >> (8 * PLACE)) & 255) + 126) << 7)
        .to(tl.int16)
        .to(tl.bfloat16, bitcast=True)[:, None]
    )


@triton.jit
def _number(words, scales, PLACE: tl.constexpr):
    """One of the four numbers in each word [N, K], in float32 and with its scale."""
    bits = (words.to(tl.int32) >> (4 * PLACE)) & 15
    low, exponent = bits & 1, (bits >> 1) & 3
    value = tl.where(exponent == 0, low, (2 + low) << exponent >> 1).to(tl.float32) * 0.5
    exponent = (scales >> (8 * PLACE)) & 255
    power = tl.where(exponent > 0, exponent << 23, 1 << 22).to(tl.float32, bitcast=True)
    return tl.where(bits > 7, -value, value) * power[:, None]


@triton.jit
def _groups_kernel(
    x_ptr, which_ptr, words_ptr, scales_ptr, ends_ptr, out_ptr,
    groups, columns, size, stages,
    ROWS: tl.constexpr, LINES: tl.constexpr, GROUPS: tl.constexpr, INDEXED: tl.constexpr,
    WORDS: tl.constexpr,
):  # fmt: skip
    """ends_ptr: [groups]; which_ptr: [T] rows of x, if INDEXED; GROUPS: a power of two.

    The tiles of a group begin at the number (its first row // ROWS + its place): numbers that grow
    by at least the tiles that it has, so that no program has to add up what the others have.
    """
    blocks = tl.cdiv(columns, LINES)
    tile = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
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
    real = (m < end)[:, None]
    source = m.to(tl.int64)
    if INDEXED:
        source = tl.load(which_ptr + m, mask=m < end, other=0).to(tl.int64)
    n = block * LINES + tl.arange(0, LINES)
    whole = n < columns
    k = tl.arange(0, WORDS)
    x_ptrs = x_ptr + source[:, None] * size + k[None, :]
    words_ptrs = words_ptr + (group.to(tl.int64) * columns + n)[:, None] * (stages * WORDS)
    words_ptrs += k[None, :]
    scale_ptrs = scales_ptr + group.to(tl.int64) * stages * columns + n
    acc = tl.zeros([LINES, ROWS], tl.float32)
    for i in range(0, stages):
        words = tl.load(words_ptrs + i * WORDS, mask=whole[:, None], other=0)
        scales = tl.load(scale_ptrs + i * columns, mask=whole, other=0)
        at = i * 4 * WORDS
        x0 = tl.load(x_ptrs + at, mask=real, other=0.0)
        x1 = tl.load(x_ptrs + at + WORDS, mask=real & (at + WORDS < size), other=0.0)
        x2 = tl.load(x_ptrs + at + 2 * WORDS, mask=real & (at + 2 * WORDS < size), other=0.0)
        x3 = tl.load(x_ptrs + at + 3 * WORDS, mask=real & (at + 3 * WORDS < size), other=0.0)
        if x_ptr.dtype.element_ty == tl.bfloat16:
            s0, s1 = _factor(scales, 0), _factor(scales, 1)
            s2, s3 = _factor(scales, 2), _factor(scales, 3)
            w0, w1, w2, w3 = tl.inline_asm_elementwise(
                _WIDEN, "=&r,=&r,=&r,=&r,r,r,r,r,r", [words, s0, s1, s2, s3],
                dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16), is_pure=True, pack=2,
            )  # fmt: skip
        else:
            w0, w1 = _number(words, scales, 0), _number(words, scales, 1)
            w2, w3 = _number(words, scales, 2), _number(words, scales, 3)
        acc = tl.dot(w0, x0.T, acc, input_precision="ieee")
        acc = tl.dot(w1, x1.T, acc, input_precision="ieee")
        acc = tl.dot(w2, x2.T, acc, input_precision="ieee")
        acc = tl.dot(w3, x3.T, acc, input_precision="ieee")
        if x_ptr.dtype.element_ty == tl.bfloat16:
            acc = tl.inline_asm_elementwise(
                _AS_IT_IS, "=f,0", [acc], dtype=tl.float32, is_pure=True, pack=1
            )
    out_ptrs = out_ptr + m.to(tl.int64)[:, None] * columns + n[None, :]
    out = acc.T.to(out_ptr.dtype.element_ty)
    tl.store(out_ptrs, out, mask=real & whole[None, :])


def tile_for(rows: int, groups: int) -> Tile:
    """The tile for so many rows of all groups together."""
    each = rows / groups
    if each <= 10:
        return Tile(16, 128, 4, 3)
    if each <= 22:
        return Tile(32, 128, 4, 3)
    if each <= 48:
        return Tile(64, 128, 4, 3)
    return Tile(128, 128, 8, 3)


def fp4_groups(
    x: torch.Tensor,
    which: torch.Tensor | None,
    words: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
    tile: Tile | None = None,
) -> torch.Tensor:
    """Multiply rows that lie group by group, each group by a weight of its own: [T, N] as x.

    Args:
        x: [R, K] in bfloat16 or float32, K a multiple of 32.
        which: [T] the row of x that each row is; None where they are x's in their order.
        words, scales: [G, N, S * 32] and [G, S, N], as `fp4_words.pack` makes them.
        ends: [G] the row after each group's last, int32. Rows behind the last group's are not
            written.
        tile: by default the one for so many rows.
    """
    groups, columns, _ = words.shape
    size, stages = x.shape[1], scales.shape[1]
    assert x.is_contiguous() and words.is_contiguous() and scales.is_contiguous()
    assert x.dtype in (torch.bfloat16, torch.float32) and ends.dtype == torch.int32
    assert size % GROUP == 0 and stages == triton.cdiv(size, STAGE)
    assert words.shape[2] == stages * _WORDS and scales.shape == (groups, stages, columns)
    count = len(x) if which is None else len(which)
    out = x.new_empty(count, columns)
    if not count:
        return out
    tile = tile or tile_for(count, groups)
    grid = ((count // tile.rows + groups) * triton.cdiv(columns, tile.lines),)
    _groups_kernel[grid](
        x, ends if which is None else which, words, scales, ends, out,
        groups, columns, size, stages,
        ROWS=tile.rows, LINES=tile.lines, GROUPS=triton.next_power_of_2(groups),
        INDEXED=which is not None, WORDS=_WORDS,
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out
