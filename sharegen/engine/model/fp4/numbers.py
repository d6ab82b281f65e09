"""MXFP4's numbers: e2m1, two in a byte, with a power of two for 32 of them.

Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0.
"""

from __future__ import annotations

import torch

from sharegen.kernels.fp4_words import GROUP

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # where rounding changes from one to the next
_BIAS = 127  # of a scale's exponent
_NAN = 255

_SIGNED = torch.tensor([*_E2M1, *(-number for number in _E2M1)], dtype=torch.float32, device="cpu")
# Both numbers of a byte at once, as one of 64 bits: some 8 times as fast.
_PAIRS = torch.stack([_SIGNED.repeat(16), _SIGNED.repeat_interleave(16)], dim=-1)
_PAIRS = _PAIRS.view(torch.int64).flatten()
_POWERS = torch.tensor(
    [*(2.0 ** (e - _BIAS) for e in range(_NAN)), torch.nan], dtype=torch.float32, device="cpu"
)


def powers(scales: torch.Tensor) -> torch.Tensor:
    """What scales in E8M0, uint8 of any shape, are worth, in float32: powers of two, or NaN."""
    return _POWERS.to(scales.device)[scales.int()]


def widened(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The numbers [..., K] in float32, which has them all.

    blocks: [..., K / 2] uint8, two numbers each, the first in the lower half. scales: [..., K / 32]
    uint8.
    """
    wide = _PAIRS.to(blocks.device).index_select(0, blocks.flatten().int()).view(torch.float32)
    return wide.view(*scales.shape, GROUP).mul_(powers(scales)[..., None]).flatten(-2)


def rounded(weight: torch.Tensor, largest_scale: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Round a weight [..., K], K a multiple of 32: blocks [..., K / 2] and scales [..., K / 32].

    A group's scale is the least normal number with which its largest number is not cut off, and at
    most `largest_scale`, in E8M0.
    """
    groups = weight.float().unflatten(-1, (-1, GROUP))
    largest = groups.abs().amax(dim=-1, keepdim=True)
    exponents = (largest / _E2M1[-1]).log2().ceil().clamp(1 - _BIAS, largest_scale - _BIAS)
    between = torch.tensor(_BETWEEN, dtype=torch.float32, device=weight.device)
    codes = torch.bucketize((groups.abs() / exponents.exp2()).contiguous(), between)
    codes = (codes + 8 * groups.signbit()).to(torch.uint8).flatten(-2)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks, (exponents.squeeze(-1) + _BIAS).to(torch.uint8)
