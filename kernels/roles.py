"""What kernels in Gluon have in common whose warps have roles: some fetch, others compute."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor as Descriptor

PANEL = gl.constexpr(64)
"""Numbers of a row that lie side by side in shared memory."""

_SWIZZLE = 128  # bytes of a row that lie side by side in shared memory


def is_hopper(device: torch.device) -> bool:
    """Whether it has what these kernels are made of: sm_90's copies and matrix products."""
    is_there = device.type == "cuda" and torch.cuda.is_available()
    return is_there and torch.cuda.get_device_capability(device)[0] == 9


@gluon.jit
def leave():
    """Ends the warp: the program has nothing to do after its roles.

    Where a role returns, the compiler does not count on the registers that were taken over, and
    waits for every matrix product at once.
    """
    gl.inline_asm_elementwise("exit; mov.b32 $0, 0;", "=r", [], gl.int32, is_pure=False, pack=1)


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """The stage of a ring behind this one, and how often its barriers have turned, modulo 2."""
    is_last = stage == STAGES - 1
    return gl.where(is_last, 0, stage + 1), gl.where(is_last, phase ^ 1, phase)


@gluon.constexpr_function
def _scaling(count):
    """Multiplies `count` numbers by as many others, but only if a thread of the warp has to."""
    products = " ".join(f"mul.f32 ${i}, ${i}, ${2 * count + i};" for i in range(count))
    of_rows = (2 * count, 2 * count + 2)  # the others are of two rows, two by two
    is_one = "; ".join(f"setp.eq.f32 p{i}, ${of_rows[i]}, 0f3F800000" for i in (0, 1))
    return (
        f"{{ .reg .pred p0, p1; {is_one}; and.pred p0, p0, p1; "
        f"vote.sync.all.pred p0, p0, 0xffffffff; @p0 bra ONE; {products} ONE: }}"
    )


@gluon.constexpr_function
def _operands(count):
    """Results, which lie where the first factors did, these, and the second ones."""
    return ",".join(["=f"] * count + [str(i) for i in range(count)] + ["f"] * count)


@gluon.jit
def scaled(acc, decay):
    """acc [LINES, BLOCK_D] * decay [LINES], which is mostly 1 where a maximum is kept for long."""
    COUNT: gl.constexpr = acc.shape[0] * acc.shape[1] // 128  # numbers of a thread
    _, decay = gl.broadcast(acc, decay[:, None])
    return gl.inline_asm_elementwise(
        _scaling(COUNT), _operands(COUNT), [acc, decay], gl.float32, is_pure=True, pack=COUNT
    )


@gluon.jit
def scores_of(q, k_ring, full, stage, phase, s_layout: gl.constexpr):
    """Begin the products of the queries and the tile, which are on their way then."""
    LINES: gl.constexpr = q.shape[0]
    BLOCK_N: gl.constexpr = k_ring.shape[1]
    mbarrier.wait(full.index(stage), phase)
    return warpgroup_mma(
        q, k_ring.index(stage).permute((1, 0)),
        gl.zeros([LINES, BLOCK_N], gl.float32, s_layout), use_acc=False, is_async=True,
    )  # fmt: skip


def tiles_of(
    tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], tile: Sequence[int]
) -> TensorDescriptor:
    """What the copy engine reads or writes a tensor's tiles by, as they lie in shared memory."""
    layout = gl.NVMMASharedLayout(_SWIZZLE, 16, len(tile))
    return TensorDescriptor(tensor, list(shape), list(strides), list(tile), layout)


def in_shared_memory(found: Descriptor, width: int) -> TensorDescriptor:
    """Describe the same tensor for Gluon, with tiles of `width` numbers of a row."""
    return tiles_of(found.base, found.shape, found.strides, [*found.block_shape[:-1], width])
