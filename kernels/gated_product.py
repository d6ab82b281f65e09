"""A gated MLP's first product and its activation, on Hopper processors: of many rows one kernel.

A program multiplies the same rows by some of the gate's columns and by those of the other half
that go with them, so that it has both numbers of a result in its registers: what is written is half
of what the product is, and nothing reads it again. One warp group fetches tiles, product after
product; two others multiply half of the rows each. A sum is made of its products in their order, 16
at a time, as the library's is: the results are the same to the bit where the library does not split
that sum. Of fewer rows it depends on their number and on the width which of the two is faster;
these are the library's, and the activation is a kernel behind it.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from sharegen.kernels.fp8_rows import gate_by
from sharegen.kernels.online_softmax import LOG2E
from sharegen.kernels.roles import is_hopper, leave, next_stage, tiles_of
from sharegen.kernels.tiles import num_processors

_ROWS, _COLUMNS, _DEPTH = 128, 128, 64  # of a tile: of the result, and of the numbers summed up
_STAGES = 3
_GROUP = 8  # tiles of rows, which stay in the cache while all columns go by
_ALIGNMENT = 16  # bytes
LEAST_ROWS = 512  # from which on it was faster for all widths tried
_BLOCK = 1024  # numbers of a program where the activation is a kernel of its own

# Registers of a thread: of all when the kernel begins, and of those that multiply, which take over
# what those that fetch do without.
_REGISTERS = 168
_MULTIPLYING = 232


@gluon.jit
def _place(tile, row_tiles, column_tiles, ROWS: gl.constexpr, COLUMNS: gl.constexpr,
           GROUP: gl.constexpr):  # fmt: skip
    """(first row, first column) of a tile of the result: rows first, GROUP tiles of them."""
    in_group = GROUP * column_tiles
    first = tile // in_group * GROUP
    count = gl.minimum(row_tiles - first, GROUP)
    rest = tile % in_group
    return (first + rest % count) * ROWS, rest // count * COLUMNS


@gluon.jit
def _fetch(
    x_desc, weight_desc, x_ring, weight_ring, full, empty, row_tiles, column_tiles, size, width,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Fills the rings: x_ring [STAGES, ROWS, DEPTH], weight_ring [STAGES, 2 * COLUMNS, DEPTH]."""
    STAGES: gl.constexpr = x_ring.shape[0]
    ROWS: gl.constexpr = x_ring.shape[1]
    DEPTH: gl.constexpr = x_ring.shape[2]
    COLUMNS: gl.constexpr = weight_ring.shape[1] // 2
    stage = 0
    phase = 1  # the rings are empty
    num_tiles = row_tiles * column_tiles
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, ROWS, COLUMNS, GROUP)
        for k in range(0, size, DEPTH):
            bar = full.index(stage)
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(bar, 2 * (ROWS + 2 * COLUMNS) * DEPTH)  # bytes of all
            gate = weight_ring.index(stage).slice(0, COLUMNS)
            up = weight_ring.index(stage).slice(COLUMNS, COLUMNS)
            tma.async_copy_global_to_shared(x_desc, [row, k], bar, x_ring.index(stage))
            tma.async_copy_global_to_shared(weight_desc, [column, k], bar, gate)
            tma.async_copy_global_to_shared(weight_desc, [width + column, k], bar, up)
            stage, phase = next_stage(stage, phase, STAGES)
    leave()


@gluon.jit
def _rounded(x):
    """Round to bfloat16, two by two: the compiler would convert one by one, a quarter as fast."""
    pair: gl.constexpr = "cvt.rn.bf16x2.f32 t, $3, $2; shl.b32 $0, t, 16; and.b32 $1, t, 0xffff0000"
    return gl.inline_asm_elementwise(
        "{ .reg .b32 t; " + pair + "; }", "=f,=f,f,f", [x], gl.float32, is_pure=True, pack=2
    )


@gluon.jit
def _silu(x):
    """x / (1 + exp(-x)), as precise as bfloat16 needs it."""
    below = 1.0 + gl.exp2(x * -LOG2E)
    return x * gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [below], gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def _multiply(
    out_desc, x_ring, weight_ring, out_buffers, full, empty, row_tiles, column_tiles, size,
    GROUP: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """Multiply the first or second HALF of the rows of each tile; out_buffers: [2, LINES,
    COLUMNS].
    """
    STAGES: gl.constexpr = x_ring.shape[0]
    ROWS: gl.constexpr = x_ring.shape[1]
    DEPTH: gl.constexpr = x_ring.shape[2]
    COLUMNS: gl.constexpr = weight_ring.shape[1] // 2
    LINES: gl.constexpr = ROWS // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * COLUMNS, 16])
    half_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    out_buffer = out_buffers.index(HALF)
    stage = 0
    phase = 0
    num_tiles = row_tiles * column_tiles
    for tile in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        row, column = _place(tile, row_tiles, column_tiles, ROWS, COLUMNS, GROUP)
        acc = gl.zeros([LINES, 2 * COLUMNS], gl.float32, layout)
        before = stage + 0  # a name of its own, or the compiler takes the two for one in loops
        for k in range(0, size, DEPTH):
            mbarrier.wait(full.index(stage), phase)
            x = x_ring.index(stage).slice(HALF * LINES, LINES)
            weight = weight_ring.index(stage).permute((1, 0))
            acc = warpgroup_mma(x, weight, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            mbarrier.arrive(empty.index(before), count=1, pred=k > 0)
            before = stage
            stage, phase = next_stage(stage, phase, STAGES)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(before), count=1)
        # What the products are, and model code goes on from, is in bfloat16.
        both = _rounded(acc).reshape([LINES, 2, COLUMNS]).permute((0, 2, 1))
        gate, up = both.split()
        gate = gl.convert_layout(gate, half_layout, assert_trivial=True)
        up = gl.convert_layout(up, half_layout, assert_trivial=True)
        tma.store_wait(0)
        out_buffer.store((_silu(gate) * up).to(out_buffer.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out_desc, [row + HALF * LINES, column], out_buffer)
    tma.store_wait(0)
    leave()


@gluon.jit
def _gated_product_kernel(
    x_desc, weight_desc, out_desc, row_tiles, column_tiles, size, width,
    ROWS: gl.constexpr, COLUMNS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr, MULTIPLYING: gl.constexpr,
):  # fmt: skip
    """MULTIPLYING: registers of a thread that multiplies."""
    dtype: gl.constexpr = x_desc.dtype
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    x_ring = gl.allocate_shared_memory(dtype, [STAGES, ROWS, DEPTH], layout)
    weight_ring = gl.allocate_shared_memory(dtype, [STAGES, 2 * COLUMNS, DEPTH], layout)
    out_buffers = gl.allocate_shared_memory(dtype, [2, ROWS // 2, COLUMNS], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    gl.warp_specialize(
        [
            (_fetch, (
                x_desc, weight_desc, x_ring, weight_ring, full, empty,
                row_tiles, column_tiles, size, width, GROUP,
            )),
            (_multiply, (
                out_desc, x_ring, weight_ring, out_buffers, full, empty,
                row_tiles, column_tiles, size, GROUP, 0,
            )),
            (_multiply, (
                out_desc, x_ring, weight_ring, out_buffers, full, empty,
                row_tiles, column_tiles, size, GROUP, 1,
            )),
        ],
        [4, 4], [MULTIPLYING, MULTIPLYING],
    )  # fmt: skip


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether `gated_product` is for such tensors and their processor; x: [T, K]."""
    width, size = weight.shape[0] // 2, weight.shape[1]
    itemsize = weight.dtype.itemsize
    return (
        is_hopper(x.device)
        and x.dtype == weight.dtype == torch.bfloat16
        and size * itemsize % _ALIGNMENT == width * itemsize % _ALIGNMENT == 0
    )


@triton.jit
def _gate_kernel(both_ptr, out_ptr, width, BLOCK: tl.constexpr):
    """Write a row's silu(gate) * up; both_ptr has the rows [gate, up]."""
    row = tl.program_id(0).to(tl.int64)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = o < width
    gate = tl.load(both_ptr + row * 2 * width + o, mask=real, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + (row * 2 + 1) * width + o, mask=real, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + o, gate_by(gate, up), mask=real)


def gated(both: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [T, N] of both [T, 2 * N], contiguous, the gate's columns first."""
    count, width = both.shape[0], both.shape[1] // 2
    out = both.new_empty(count, width)
    _gate_kernel[count, triton.cdiv(width, _BLOCK)](both, out, width, BLOCK=_BLOCK)
    return out


def gated_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [T, N] of x [T, K] and weight [2 * N, K], the gate's rows first.

    The products are rounded before the activation, and their product after it, as in model code
    that is compiled.
    """
    if len(x) < LEAST_ROWS:
        return gated(torch.nn.functional.linear(x, weight))
    count, size = x.shape
    width = len(weight) // 2
    out = x.new_empty(count, width)
    row_tiles, column_tiles = triton.cdiv(count, _ROWS), triton.cdiv(width, _COLUMNS)
    x = x.contiguous()
    _gated_product_kernel[(min(num_processors(x.device), row_tiles * column_tiles),)](
        tiles_of(x, x.shape, x.stride(), [_ROWS, _DEPTH]),
        tiles_of(weight, weight.shape, weight.stride(), [_COLUMNS, _DEPTH]),
        tiles_of(out, out.shape, out.stride(), [_ROWS // 2, _COLUMNS]),
        row_tiles, column_tiles, size, width,
        ROWS=_ROWS, COLUMNS=_COLUMNS, DEPTH=_DEPTH, STAGES=_STAGES, GROUP=_GROUP,
        MULTIPLYING=_MULTIPLYING, num_warps=4, maxnreg=_REGISTERS,
    )  # fmt: skip
    return out
