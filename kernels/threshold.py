"""What top-k, top-p and min-p leave of a row of logits: a threshold, and the sums above it.

A launch searches the row, by counting (top-k) or summing (top-p) what lies above a few pivots and
tightening the bracket around the threshold until it holds a single value; as soon as few are left
in the bracket they are copied aside, so that the last passes are short. All that ties with the
threshold stays.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels.logits import GREEDY_BELOW, inverse_temperature_of, relative_exp, row_of

SEARCH_BLOCK, SEARCH_WARPS = 1024, 4  # logits that a search looks at together
CAPACITY = 4096  # how many of a row's logits can be put aside, a multiple of SEARCH_BLOCK

_MOST_PASSES = tl.constexpr(128)
_NO_MASS = tl.constexpr(150.0)  # 2 to the minus so much is 0
WIDE = tl.constexpr(4)  # logits that a thread reads together


@triton.jit
def _by_thread(values, BLOCK: tl.constexpr):
    """Sums of the values that a thread reads together: [BLOCK // WIDE] of [BLOCK]."""
    return tl.sum(tl.reshape(values, [BLOCK // WIDE, WIDE]), 1)


@triton.jit
def _search(
    x_ptr, length, low, high, above, floor, wanted, maximum, inverse_temperature, few,
    BY_MASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Tighten the bracket (low, high] around the least value above which lies less than `wanted`.

    Only values >= floor count. above: what lies above `high`, which is less than wanted.
    Returns the new (low, high, above) and whether `high` is the value, for which it looks no
    further where `few` values or less are left.
    """
    found = tl.full((), 0, tl.int32)
    left = few + 1.0
    passes = tl.full((), _MOST_PASSES, tl.int32)  # only a NaN or an infinite logit needs so many
    while (left > few) & (found == 0) & (passes > 0):
        passes -= 1
        p_1 = tl.minimum(low * 0.8 + high * 0.2, high)
        p_2 = tl.minimum(low * 0.6 + high * 0.4, high)
        p_3 = tl.minimum(low * 0.4 + high * 0.6, high)
        p_4 = tl.minimum(low * 0.2 + high * 0.8, high)
        # How many there are above low and the pivots, and what these weigh.
        n_0 = tl.zeros([BLOCK // WIDE], tl.float32)
        n_1 = tl.zeros([BLOCK // WIDE], tl.float32)
        n_2 = tl.zeros([BLOCK // WIDE], tl.float32)
        n_3 = tl.zeros([BLOCK // WIDE], tl.float32)
        n_4 = tl.zeros([BLOCK // WIDE], tl.float32)
        b_1 = tl.zeros([BLOCK // WIDE], tl.float32)
        b_2 = tl.zeros([BLOCK // WIDE], tl.float32)
        b_3 = tl.zeros([BLOCK // WIDE], tl.float32)
        b_4 = tl.zeros([BLOCK // WIDE], tl.float32)
        b_least = tl.full([BLOCK // WIDE], float("inf"), tl.float32)
        b_most = tl.full([BLOCK // WIDE], float("-inf"), tl.float32)
        for start in range(0, length, BLOCK):
            i = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + i, mask=i < length, other=float("-inf")).to(tl.float32)
            inside = (x > low) & (x <= high) & (x >= floor)
            one = tl.where(inside, 1.0, 0.0)
            n_0 += _by_thread(one, BLOCK)
            n_1 += _by_thread(tl.where(x > p_1, one, 0.0), BLOCK)
            n_2 += _by_thread(tl.where(x > p_2, one, 0.0), BLOCK)
            n_3 += _by_thread(tl.where(x > p_3, one, 0.0), BLOCK)
            n_4 += _by_thread(tl.where(x > p_4, one, 0.0), BLOCK)
            if BY_MASS:
                weight = tl.where(inside, relative_exp(x, maximum, inverse_temperature), 0.0)
                b_1 += _by_thread(tl.where(x > p_1, weight, 0.0), BLOCK)
                b_2 += _by_thread(tl.where(x > p_2, weight, 0.0), BLOCK)
                b_3 += _by_thread(tl.where(x > p_3, weight, 0.0), BLOCK)
                b_4 += _by_thread(tl.where(x > p_4, weight, 0.0), BLOCK)
            inner = tl.reshape(tl.where(inside, x, float("inf")), [BLOCK // WIDE, WIDE])
            b_least = tl.minimum(b_least, tl.min(inner, 1))
            inner = tl.reshape(tl.where(inside, x, float("-inf")), [BLOCK // WIDE, WIDE])
            b_most = tl.maximum(b_most, tl.max(inner, 1))
        if not BY_MASS:
            b_1, b_2, b_3, b_4 = n_1, n_2, n_3, n_4
        least, most = tl.min(b_least, 0), tl.max(b_most, 0)
        a_1, a_2 = above + tl.sum(b_1, 0), above + tl.sum(b_2, 0)
        a_3, a_4 = above + tl.sum(b_3, 0), above + tl.sum(b_4, 0)
        c_0, c_1, c_2 = tl.sum(n_0, 0), tl.sum(n_1, 0), tl.sum(n_2, 0)
        c_3, c_4 = tl.sum(n_3, 0), tl.sum(n_4, 0)
        ge_1, ge_2, ge_3, ge_4 = a_1 >= wanted, a_2 >= wanted, a_3 >= wanted, a_4 >= wanted
        new_low = tl.where(ge_3, p_3, tl.where(ge_2, p_2, tl.where(ge_1, p_1, low)))
        new_high = tl.where(ge_3, p_4, tl.where(ge_2, p_3, tl.where(ge_1, p_2, p_1)))
        new_above = tl.where(ge_3, a_4, tl.where(ge_2, a_3, tl.where(ge_1, a_2, a_1)))
        left = tl.where(ge_3, c_3 - c_4, tl.where(ge_2, c_2 - c_3, c_1 - c_2))
        left = tl.where(ge_4, c_4, tl.where(ge_1, left, c_0 - c_1))
        low = tl.maximum(low, tl.where(ge_4, p_4, new_low))
        above = tl.where(ge_4, above, new_above)
        high = tl.where(ge_4, high, new_high)
        # Even the bracket's least value may have too little above it; or it is the only one.
        found = ((high < least) | (least >= most)).to(tl.int32)
        high = tl.where(found != 0, least, tl.minimum(high, most))
    return low, high, above, found


@triton.jit
def _put_aside(
    x_ptr, length, aside_ptr, low, high, floor, CAPACITY: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Copy the values in (low, high], at least floor, as many as there is room for; -inf after.

    Returns how many there are.
    """
    for start in range(0, CAPACITY, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(aside_ptr + i, tl.full([BLOCK], float("-inf"), aside_ptr.dtype.element_ty))
    tl.debug_barrier()  # other threads write over it
    count = tl.full((), 0, tl.int32)
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(x_ptr + i, mask=i < length, other=float("-inf"))
        x = value.to(tl.float32)
        inside = ((x > low) & (x <= high) & (x >= floor)).to(tl.int32)
        place = count + tl.cumsum(inside, 0) - 1
        tl.store(aside_ptr + place, value, mask=(inside != 0) & (place < CAPACITY))
        count += tl.sum(inside, 0)
    tl.debug_barrier()  # other threads read it
    return count


@triton.jit
def _find(
    x_ptr, length, aside_ptr, low, high, floor, wanted, maximum, inverse_temperature,
    BY_MASS: tl.constexpr, CAPACITY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The least value in (low, high], at least floor, above which lies less than `wanted`."""
    above = tl.full((), 0.0, tl.float32)
    few = tl.where(length <= CAPACITY, 0.0, CAPACITY)
    low, high, above, found = _search(
        x_ptr, length, low, high, above, floor, wanted, maximum, inverse_temperature, few,
        BY_MASS, BLOCK,
    )  # fmt: skip
    if found == 0:
        _put_aside(x_ptr, length, aside_ptr, low, high, floor, CAPACITY, BLOCK)
        low, high, above, found = _search(
            aside_ptr, CAPACITY, low, high, above, floor, wanted, maximum, inverse_temperature,
            0.0, BY_MASS, BLOCK,
        )  # fmt: skip
    return high


@triton.jit
def _below(x):
    """A number a little less than x (-inf stays)."""
    return x - tl.maximum(tl.abs(x), 1e-30) * 1e-6


@triton.jit
def _search_from(lowest, maximum, inverse_temperature):
    """What a search begins above: the lowest logit, or where exponentials are 0 in float32.

    So a token that is barred by a large negative number, be it the least of all, costs no passes.
    """
    weightless = maximum - _NO_MASS / inverse_temperature
    return tl.maximum(_below(lowest), tl.minimum(weightless, _below(maximum)))


@triton.jit
def _mass(x_ptr, length, floor, maximum, inverse_temperature, BLOCK: tl.constexpr):
    b_mass = tl.zeros([BLOCK], tl.float32)
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < length, other=float("-inf")).to(tl.float32)
        b_mass += tl.where(x >= floor, relative_exp(x, maximum, inverse_temperature), 0.0)
    return tl.sum(b_mass, 0)


@triton.jit
def _threshold_kernel(
    logits_ptr, logit_rows_ptr, temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
    low_ptr, high_ptr, mass_ptr, aside_ptr, threshold_ptr,
    stride_l, stride_t, stride_k, stride_p, stride_m, vocab_size, num_pieces,
    HAS_LOGIT_ROWS: tl.constexpr, NUM_PIECES: tl.constexpr, CAPACITY: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The least logit of each row that top-k, top-p and min-p leave."""
    row = tl.program_id(0)
    top_k = tl.load(top_k_ptr + row * stride_k)
    top_p = tl.load(top_p_ptr + row * stride_p)
    min_p = tl.load(min_p_ptr + row * stride_m)
    inverse_temperature = inverse_temperature_of(temperature_ptr, row, stride_t)
    greedy = tl.load(temperature_ptr + row * stride_t) < GREEDY_BELOW

    i_piece = tl.arange(0, NUM_PIECES)
    i_stats = row.to(tl.int64) * num_pieces + i_piece
    real = i_piece < num_pieces
    highs = tl.load(high_ptr + i_stats, mask=real, other=float("-inf"))
    masses = tl.load(mass_ptr + i_stats, mask=real, other=0.0)
    maximum = tl.max(highs, 0)
    lowest = tl.min(tl.load(low_ptr + i_stats, mask=real, other=float("inf")), 0)
    total = tl.sum(masses * relative_exp(highs, maximum, inverse_temperature), 0)

    i_logits = row_of(row, logit_rows_ptr, HAS_LOGIT_ROWS)
    source = logits_ptr + i_logits * stride_l
    length = vocab_size
    aside_ptr += row.to(tl.int64) * (2 * CAPACITY)
    kept = tl.full((), float("-inf"), tl.float32)
    low = _search_from(lowest, maximum, inverse_temperature)
    if (top_k < vocab_size) & (greedy == 0):
        kept = _find(
            source, length, aside_ptr, low, maximum, kept, top_k.to(tl.float32), maximum,
            inverse_temperature, False, CAPACITY, BLOCK,
        )  # fmt: skip
    if (top_p < 1) & (greedy == 0):
        count = tl.full((), CAPACITY + 1, tl.int32)
        if top_k < vocab_size:
            low = _below(kept)
            count = _put_aside(source, length, aside_ptr, low, maximum, kept, CAPACITY, BLOCK)
        # What is aside is selected by value, not by a branch: the loads stay wide then.
        source = tl.where(count <= CAPACITY, aside_ptr, source)
        length = tl.where(count <= CAPACITY, CAPACITY, length)
        if top_k < vocab_size:
            total = _mass(source, length, kept, maximum, inverse_temperature, BLOCK)
        kept = _find(
            source, length, aside_ptr + CAPACITY, low, maximum, kept, top_p * total, maximum,
            inverse_temperature, True, CAPACITY, BLOCK,
        )  # fmt: skip
    if (min_p > 0) & (greedy == 0):
        kept = tl.maximum(kept, maximum + tl.log2(min_p) / inverse_temperature)
    tl.store(threshold_ptr + row, kept)


@triton.jit
def _survivors_kernel(
    logits_ptr, logit_rows_ptr, temperature_ptr, high_ptr, mass_ptr, threshold_ptr,
    stride_l, stride_t, vocab_size, num_pieces,
    HAS_LOGIT_ROWS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Write each piece's sum of exponentials again, of what the threshold left."""
    row, piece = tl.program_id(0), tl.program_id(1)
    threshold = tl.load(threshold_ptr + row)
    if threshold == float("-inf"):
        return
    i_stats = row.to(tl.int64) * num_pieces + piece
    high = tl.load(high_ptr + i_stats)
    if high < threshold:
        tl.store(mass_ptr + i_stats, 0.0)
        return
    i_token = piece * PIECE + tl.arange(0, PIECE)
    p_x = logits_ptr + row_of(row, logit_rows_ptr, HAS_LOGIT_ROWS) * stride_l + i_token
    x = tl.load(p_x, mask=i_token < vocab_size, other=float("-inf")).to(tl.float32)
    inverse_temperature = inverse_temperature_of(temperature_ptr, row, stride_t)
    weight = tl.where(x >= threshold, relative_exp(x, high, inverse_temperature), 0.0)
    tl.store(mass_ptr + i_stats, tl.sum(weight, 0))


def keep_likely(
    logits: torch.Tensor, logit_rows: torch.Tensor, temperature: torch.Tensor,
    top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor,
    low: torch.Tensor, high: torch.Tensor, mass: torch.Tensor, threshold: torch.Tensor,
    piece: int, *, has_logit_rows: bool,
) -> None:  # fmt: skip
    """Find each row's threshold, and leave in `mass` what lies above it.

    Args:
        logits, temperature, top_k, top_p, min_p: as `draw` takes them.
        logit_rows: [n] int64, read only with has_logit_rows.
        low, high, mass: [n, pieces] float32, of `piece` logits each the least finite one, the
            largest, and the sum of exponentials.
        threshold: [n] float32, which is written; -inf for a row that keeps all.
    """
    num_rows, num_pieces = mass.shape
    vocab_size = logits.shape[1]
    assert CAPACITY % SEARCH_BLOCK == 0
    aside = torch.empty(num_rows, 2 * CAPACITY, dtype=logits.dtype, device=logits.device)
    _threshold_kernel[(num_rows,)](
        logits, logit_rows, temperature, top_k, top_p, min_p, low, high, mass, aside, threshold,
        logits.stride(0), temperature.stride(0), top_k.stride(0), top_p.stride(0),
        min_p.stride(0), vocab_size, num_pieces,
        HAS_LOGIT_ROWS=has_logit_rows, NUM_PIECES=triton.next_power_of_2(num_pieces),
        CAPACITY=CAPACITY, BLOCK=SEARCH_BLOCK, num_warps=SEARCH_WARPS,
    )  # fmt: skip
    _survivors_kernel[(num_rows, num_pieces)](
        logits, logit_rows, temperature, high, mass, threshold,
        logits.stride(0), temperature.stride(0), vocab_size, num_pieces,
        HAS_LOGIT_ROWS=has_logit_rows, PIECE=piece, num_warps=4,
    )  # fmt: skip
