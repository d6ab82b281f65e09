"""What kernels in Gluon have in common whose warps have roles: some fetch, others compute."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


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
