"""The softmax that all attention kernels share, one tile of keys at a time.

A running state is (acc, m, total): the sum of exp2(s - m) v, the largest s so far and the sum of
exp2(s - m), with scores s in units of log2, because exp2 is what the hardware computes. Outside the
kernels a log-sum-exp is always in natural logarithm, as in the reference: `fold` and `finish`
convert. An empty state has m = -inf, and merges cleanly.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)

_LEAST_UNIT = tl.constexpr(2.0**-15)  # of the largest scale: 1.0 is 2^15 of them, which float16 has

NO_LIMIT = tl.constexpr(0)
WINDOW = tl.constexpr(1)
ATTENTION_CHUNK = tl.constexpr(2)


@triton.jit
def lowest_visible(position, limit, LIMIT: tl.constexpr):
    """The first position that a query at `position` sees, through a window or chunks of `limit`."""
    if LIMIT == WINDOW:
        return position - limit + 1
    else:
        return position // limit * limit


@triton.jit
def scores(q, k, scale, softcap, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """q [M, D] k^T [D, N], as `in_log2` gives them."""
    return in_log2(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale, softcap, HAS_SOFTCAP)


@triton.jit
def fp8_scores(q, k, k_scale, scale, softcap, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr):
    """`scores` of FP8 keys k [N, D] with their scales [N]."""
    k = unscaled(k, q.dtype)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * k_scale[None, :]
    return in_log2(s, scale, softcap, HAS_SOFTCAP)


@triton.jit
def unscaled(x, dtype: tl.constexpr):
    """FP8 numbers in the model's dtype, but for their scales: none is rounded."""
    if dtype == tl.bfloat16:  # the one instruction that does it from float16 is eight times slower
        return x.to(tl.float16).to(tl.float32).to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def from_fp8(x, x_scale, dtype: tl.constexpr):
    """FP8 numbers x [N, D] with their scales [N], in the model's dtype."""
    return unscaled(x, dtype) * x_scale.to(dtype)[:, None]


@triton.jit
def in_log2(s, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """Products s as a pair (s, factor): the scores are s * factor, in log2 units.

    The factor is left to `attend`, where it becomes part of a fused multiply-add.
    """
    factor = scale * LOG2E
    if HAS_SOFTCAP:
        # tanh(x) = 1 - 2 / (exp(2x) + 1), which saturates without overflowing to NaN
        s = 1.0 - 2.0 / (tl.exp2(s * (scale / softcap * 2 * LOG2E)) + 1.0)
        factor = softcap * LOG2E
    return s, factor


@triton.jit
def weights(m, s, factor, MASKED: tl.constexpr, SLACK: tl.constexpr = 0.0):
    """(p [M, N], what becomes of acc and total, m) with one more tile of scores s * factor [M, N].

    MASKED: a row may have seen no key so far (s = -inf everywhere). SLACK: m is not the largest s,
    but at most so much below it.
    """
    largest = tl.max(s, 1) * factor
    m_new = tl.maximum(m, largest) if SLACK == 0.0 else tl.where(largest > m + SLACK, largest, m)
    shift = m_new
    if MASKED:
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    return tl.exp2(s * factor - shift[:, None]), tl.exp2(m - shift), m_new


@triton.jit
def attend(acc, m, total, s, factor, v, MASKED: tl.constexpr, PRECISION: tl.constexpr):
    """The state after one more tile, see `weights`: its values v [N, Dv] too."""
    p, decay, m = weights(m, s, factor, MASKED)
    total = total * decay + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return acc, m, total


@triton.jit
def attend_transposed(
    acc, m, total, s, factor, v, v_scale, unit, MASKED: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """`attend` with scores [N, M] and acc [Dv, M]: for few lines, which may then be only 8.

    v_scale: None, or the scales [N] of the values, by which p is multiplied instead of these; then
    acc is in `unit`s, of which the largest p has as many as float16 has numbers for, and which grow
    with the scales.
    """
    m_new = tl.maximum(m, tl.max(s, 0) * factor)
    shift = m_new
    if MASKED:
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp2(s * factor - shift[None, :])
    decay = tl.exp2(m - shift)
    total = total * decay + tl.sum(p, 0)
    if v_scale is not None:
        grown = tl.maximum(unit, tl.max(v_scale, 0) * _LEAST_UNIT)
        p *= (v_scale / grown)[:, None]
        decay *= unit / grown
        unit = grown
    acc = tl.dot(tl.trans(v), p.to(v.dtype), acc * decay[None, :], input_precision=PRECISION)
    return acc, m_new, total, unit


@triton.jit
def fold(acc, m, total, out, lse):
    """The state merged with a finished partial: out [M, Dv], lse [M] in natural logarithm."""
    other = lse * LOG2E
    m_new = tl.maximum(m, other)
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    decay = tl.exp2(m - shift)
    weight = tl.exp2(other - shift)
    out = tl.where(weight[:, None] == 0.0, 0.0, out)
    acc = acc * decay[:, None] + out * weight[:, None]
    return acc, m_new, total * decay + weight


@triton.jit
def fold_sink(acc, m, total, sink):
    """The state merged with one more logit [M] that has no value."""
    other = sink * LOG2E
    m_new = tl.maximum(m, other)
    shift = tl.where(m_new == float("-inf"), 0.0, m_new)
    decay = tl.exp2(m - shift)
    return acc * decay[:, None], m_new, total * decay + tl.exp2(other - shift)


@triton.jit
def finish(acc, m, total):
    """(out, lse) of a state, lse in natural logarithm; an empty state gives (0, -inf)."""
    safe = tl.where(total == 0.0, 1.0, total)
    lse = tl.where(total == 0.0, float("-inf"), tl.fma(m, LN2, tl.log(safe)))
    return acc * (1.0 / safe)[:, None], lse
