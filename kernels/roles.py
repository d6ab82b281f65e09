"""What kernels in Gluon have in common whose warps have roles: some fetch, others compute."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

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


def tiles_of(
    tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], tile: Sequence[int]
) -> TensorDescriptor:
    """What the copy engine reads or writes a tensor's tiles by, as they lie in shared memory."""
    layout = gl.NVMMASharedLayout(_SWIZZLE, 16, len(tile))
    return TensorDescriptor(tensor, list(shape), list(strides), list(tile), layout)
