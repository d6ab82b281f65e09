"""A row of logits, as all sampling kernels read it: where it lies, and its exponentials.

These are taken as exp2, which is what the hardware computes, of differences to a maximum, so that
none overflows; a temperature comes in as a factor in units of log2.
"""

from __future__ import annotations

import triton
import triton.language as tl

GREEDY_BELOW = tl.constexpr(1e-5)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_of(row, logit_rows_ptr, HAS_LOGIT_ROWS: tl.constexpr):
    if HAS_LOGIT_ROWS:
        return tl.load(logit_rows_ptr + row).to(tl.int64)
    return row.to(tl.int64)


@triton.jit
def inverse_temperature_of(temperature_ptr, row, stride):
    """1 / T in units of log2, so that exp2 gives exp((x - max) / T); 1 for greedy rows."""
    temperature = tl.load(temperature_ptr + row * stride)
    return LOG2_E / tl.where(temperature < GREEDY_BELOW, 1.0, temperature)


@triton.jit
def relative_exp(x, maximum, inverse_temperature):
    """exp((x - maximum) / T), 0 for x = -inf even where maximum is -inf too."""
    shifted = tl.where(x == float("-inf"), float("-inf"), x - maximum)
    return tl.exp2(shifted * inverse_temperature)
