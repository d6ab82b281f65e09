"""The order in which a weight in MXFP4 is kept for its kernel (`fp4_groups.py`).

Four numbers of four bits (e2m1) make a word, one of each of four groups of 32 that have a scale of
their own. So the first numbers of 32 words are a group, which one scale multiplies.
"""

from __future__ import annotations

import torch

GROUP = 32  # numbers of a scale
STAGE = 128  # numbers of a row that are widened at a time: four scales, 32 words of four numbers
LARGEST_SCALE = 128  # of E8M0: 2, since bfloat16 ends before the factor of a larger one


def pack(blocks: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bring a weight as checkpoints have it into the order of the kernel.

    Args:
        blocks: [..., K / 2] uint8, of two numbers each, the first in the lower four bits.
        scales: [..., N, K / 32] uint8, E8M0 of at most LARGEST_SCALE, beside [..., N, K / 2].

    Returns:
        words [..., N, S * 32] int16, of S stages of 128 numbers each, the last filled up with
        zeros: bits 4 j of the word c of a stage are its number 32 j + c. Scales [..., S, N] int32,
        bits 8 j those of numbers 32 j to 32 j + 31 of the stage.
    """
    missing = -scales.shape[-1] % 4
    numbers = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    numbers = torch.nn.functional.pad(numbers, (0, missing * GROUP)).unflatten(-1, (-1, 4, GROUP))
    low, high = (numbers[..., j, :] | numbers[..., j + 1, :] << 4 for j in (0, 2))
    words = torch.stack((low, high), dim=-1).view(torch.int16).flatten(-3)
    fours = torch.nn.functional.pad(scales, (0, missing)).unflatten(-1, (-1, 4)).movedim(-2, -3)
    return words, fours.contiguous().view(torch.int32).squeeze(-1)


def widen(words: torch.Tensor, scales: torch.Tensor, size: int, dtype: torch.dtype) -> torch.Tensor:
    """The weight [..., N, size] that `pack` was given, as numbers."""
    shifts = torch.arange(0, 16, 4, device=words.device)
    bits = words.unflatten(-1, (-1, 1, GROUP)).int() >> shifts[:, None] & 15
    exponent = (bits >> 1 & 3).float()
    value = torch.where(
        exponent == 0, (bits & 1) * 0.5, (1 + (bits & 1) * 0.5) * 2 ** (exponent - 1)
    )
    value = torch.where(bits > 7, -value, value)
    eights = scales.movedim(-1, -2).unsqueeze(-1) >> torch.arange(0, 32, 8, device=words.device)
    value = torch.ldexp(value, (eights & 255).unsqueeze(-1) - 127)
    return value.flatten(-3)[..., :size].to(dtype)
