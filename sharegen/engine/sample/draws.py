"""One uniform number a token, from a counter: the same on every device, in every order.

A sample's numbers depend on (seed, request, sample, position) and on nothing else, so neither the
batch, nor preemption, nor resuming can change them. The generator is SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): the row's key is the state,
the token's position the counter. It needs only 64-bit integer arithmetic that wraps around, which
torch does alike on a CPU and on a GPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sharegen.engine.core.random_key import GAMMA, MIX_1, MIX_2


def uniform(row_keys: Tensor, positions: Tensor) -> Tensor:
    """Draw the uniform number of each row's token.

    row_keys: int64 [n] from `row_key`; positions: int64 [n], the token's index in its sample.
    Returns float32 [n] in [0, 1), multiples of 2**-24.
    """
    bits = row_keys + (positions + 1) * GAMMA
    bits = (bits ^ _shift_right(bits, 30)) * MIX_1
    bits = (bits ^ _shift_right(bits, 27)) * MIX_2
    bits = bits ^ _shift_right(bits, 31)
    return _shift_right(bits, 40).to(torch.float32) * 2.0**-24


def _shift_right(bits: Tensor, count: int) -> Tensor:
    """Shift without the sign bit, which torch's own shift repeats."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
