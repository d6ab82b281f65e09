"""Keys and values in 8 bits: e4m3 numbers, with one scale for each token and head.

A scale is a power of two, so that multiplying by it rounds nothing, and as the numbers are floats
a finer one would not make them more precise. It is kept as the exponent of a float32 (E8M0 of the
OCP microscaling formats): one byte beside a head of keys, and one beside its values. All numbers
are finite; the exponent 255 makes a key NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

NAN = 255  # the exponent of a key that is none
# e4m3 has numbers up to 448 = 1.75 x 2^8: what is added to a float32's bits, so that their exponent
# grows where the rest is above 1.75, and what the exponent is less then.
ABOVE, LESS = 0x1FFFFF, 8
_LARGEST_FLOAT16 = 61_440.0  # a number of three bits behind the point: rounded, it is still finite


@dataclass(frozen=True)
class FP8Blocks:
    """One layer's FP8 blocks, which lie where the model's own blocks do.

    keys, values: [blocks, block_size, num_kv_heads, *] float8_e4m3fn. exponents: [blocks,
    num_kv_heads, 2, block_size] uint8, of the scales of each token's keys and of its values.
    """

    keys: Tensor
    values: Tensor
    exponents: Tensor

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of keys, then of values: from block to block, token to token, head to head."""
        return (*self.keys.stride()[:3], *self.values.stride()[:3])


def exponent_bytes(num_kv_heads: int) -> int:
    """Return the bytes of the scales of a token in one layer."""
    return 2 * num_kv_heads


def least_exponent(dtype: torch.dtype) -> int:
    """The least whose scale is a number of the model's dtype, which values are turned back to."""
    return max(1, 127 + math.frexp(torch.finfo(dtype).smallest_normal)[1] - 11)


def largest_value(dtype: torch.dtype) -> float:
    """Values beyond it, which only float16 has near its end, would be infinite once rounded."""
    return _LARGEST_FLOAT16 if dtype == torch.float16 else torch.finfo(dtype).max


def to_fp8(x: Tensor, least: int) -> tuple[Tensor, Tensor]:
    """Turn finite numbers into FP8 ones with a scale each.

    Args:
        x: [..., D].
        least: the least exponent.

    Returns:
        [..., D] in e4m3, and [...] exponents.
    """
    bits = x.float().abs().amax(-1).view(torch.int32)
    exponents = ((bits + ABOVE >> 23) - LESS).clamp(min=least)
    inverse = ((254 - exponents) << 23).view(torch.float32)
    numbers = (x.float() * inverse[..., None]).to(torch.float8_e4m3fn)
    return numbers, exponents.to(torch.uint8)


def from_fp8(numbers: Tensor, exponents: Tensor) -> Tensor:
    """Turn e4m3 numbers [..., D] with exponents [...] into float32 ones."""
    scale = (exponents.to(torch.int32) << 23).view(torch.float32)
    return numbers.float() * scale[..., None]
