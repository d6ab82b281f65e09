"""Products of experts whose weights are in MXFP4, as a checkpoint has them.

Activations stay what they are, so the products are those of the dequantised weights, but for the
order of sums. On a GPU a kernel multiplies (`kernels/fp4_groups.py`), and weights are kept in its
order. Elsewhere the weight of one expert at a time is widened to the activations' dtype.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch.nn import functional

from sharegen.engine.model.fp4.numbers import widened
from sharegen.errors import UsageError
from sharegen.kernels.fp4_words import GROUP, LARGEST_SCALE, pack, widen

FP4 = "mxfp4"
"""The quantization with which experts in MXFP4 are multiplied as they are stored."""

_LEAST_CAPABILITY = (9, 0)
_TRIAL = (80, 192)  # sizes of the weights
_TRIAL_ROWS = (3, 0, 40, 130)  # of each
_LEAST_SCALE = 116  # of the trial, in E8M0
_TOLERANCE = 0.01  # of the norm: bfloat16 rounds the result to 0.002


def check_fp4_products(device: torch.device, dtype: torch.dtype) -> None:
    """Raise UsageError, in one line, for a machine that has no such products, or wrong ones.

    dtype: of activations.
    """
    if device.type != "cuda":
        return
    reason = None
    if find_spec("triton") is None:
        reason = "it needs Triton"
    elif dtype != torch.bfloat16:
        reason = f"a GPU does it in bfloat16, and the dtype is {str(dtype).removeprefix('torch.')}"
    elif torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        major, minor = torch.cuda.get_device_capability(device)
        card = torch.cuda.get_device_name(device)
        reason = f"{card} has compute capability {major}.{minor}, and 9.0 is the least"
    else:
        reason = _trial(device)
    if reason is not None:
        raise _refusal(reason)


def _refusal(reason: str) -> UsageError:
    return UsageError(
        f"MXFP4 is not multiplied as it is stored here: {reason}: leave out --quantization {FP4}, "
        "and weights are dequantised"
    )


def _trial(device: torch.device) -> str | None:
    """Why a GPU's products do not do, if so."""
    from triton.errors import TritonError

    columns, size = _TRIAL
    count = len(_TRIAL_ROWS)
    try:
        shape = (count, columns, size // 2)
        blocks = torch.randint(256, shape, dtype=torch.uint8, device=device)
        shape = (count, columns, size // GROUP)
        above = LARGEST_SCALE + 1
        scales = torch.randint(_LEAST_SCALE, above, shape, dtype=torch.uint8, device=device)
        ends = torch.tensor(_TRIAL_ROWS, device=device).cumsum(0).int()
        x = torch.randn(sum(_TRIAL_ROWS), size, device=device, dtype=torch.bfloat16)
        which = torch.randperm(len(x), device=device)
        words, fours = pack(blocks, scales)
        found = multiply_fp4_groups(x, words, fours, ends, which).float().split(_TRIAL_ROWS)
        rows = x[which].float().split(_TRIAL_ROWS)
        for own, part, weight in zip(found, rows, widened(blocks, scales), strict=True):
            expected = functional.linear(part, weight)
            if not (own - expected).norm() <= _TOLERANCE * expected.norm():
                return "this GPU's products are not right"
    except (RuntimeError, AttributeError, ValueError, TritonError) as error:
        return f"{str(error).strip().partition(chr(10))[0]:.200}"
    return None


def multiply_fp4_groups(
    x: torch.Tensor,
    words: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
    which: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply rows that lie group by group, each group by a weight of its own: [T, N] as x.

    Args:
        x: [R, K]; on a GPU in bfloat16.
        words, scales: [G, N, S * 32] and [G, S, N] for S stages of 128 numbers, as the kernel's
            `pack` makes them.
        ends: [G] the row after each group's last, int32.
        which: [T] the row of x that each row is; by default they are x's in their order.
    """
    if words.is_cuda:
        out: torch.Tensor = torch.ops.sharegen.fp4_groups(x, which, words, scales, ends)
        return out
    rows = x if which is None else x[which]
    products = x.new_empty(len(rows), words.shape[1])
    if words.is_meta:  # there are no ends
        return products
    start = 0
    for group, end in enumerate(ends.tolist()):
        if start < end:
            weight = widen(words[group], scales[group], x.shape[1], x.dtype)
            products[start:end] = functional.linear(rows[start:end], weight)
        start = end
    return products


@torch.library.custom_op("sharegen::fp4_groups", mutates_args=())
def _fp4_groups(
    x: torch.Tensor,
    which: torch.Tensor | None,
    words: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
) -> torch.Tensor:
    """The kernel's product."""
    from sharegen.kernels.fp4_groups import fp4_groups  # which needs Triton

    return fp4_groups(x.contiguous(), which, words, scales, ends)


@_fp4_groups.register_fake
def _(
    x: torch.Tensor,
    which: torch.Tensor | None,
    words: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
) -> torch.Tensor:
    count = x.shape[0] if which is None else which.shape[0]
    return x.new_empty(count, words.shape[1])
