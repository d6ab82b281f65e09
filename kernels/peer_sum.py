"""Two GPUs' numbers, added up where one of them wants the sum.

What lies in the other GPU's memory comes over the link between them, which takes longer than all
else that is read here: so whatever else is to be added is added on the way.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

_WARPS = 4
_BLOCK = 16 * 32 * _WARPS  # a thread has two loads of 16 bytes of each on their way, in bfloat16


@triton.jit
def _add_kernel(
    own_ptr, other_ptr, base_ptr, out_ptr, count, HAS_BASE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = i < count
    dtype = out_ptr.dtype.element_ty
    other = tl.load(other_ptr + i, mask=real, other=0.0)
    own = tl.load(own_ptr + i, mask=real, other=0.0)
    total = (own.to(tl.float32) + other.to(tl.float32)).to(dtype)
    if HAS_BASE:
        base = tl.load(base_ptr + i, mask=real, other=0.0)
        total = (base.to(tl.float32) + total.to(tl.float32)).to(dtype)
    tl.store(out_ptr + i, total, mask=real)


def add_peers(
    own: torch.Tensor, other: torch.Tensor, base: torch.Tensor | None, out: torch.Tensor
) -> None:
    """Write own + other, or base + (own + other), to out; each sum is rounded as torch rounds it.

    All [n], contiguous, of one floating dtype; `other` may be in the memory of another GPU that
    this one can read. Which of the two GPUs adds makes no difference to a bit.
    """
    count = out.numel()
    _add_kernel[(triton.cdiv(count, _BLOCK),)](
        own, other, own if base is None else base, out, count,
        HAS_BASE=base is not None, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
