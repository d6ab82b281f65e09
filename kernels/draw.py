"""Tokens from logits on a GPU: temperature, top-k, top-p, min-p, one uniform number a token.

The vocabulary is never sorted. A row is cut into pieces: one launch finds each piece's largest
logit and sums of exponentials, another picks the piece in which the running sum passes the row's
number, reads that piece again and picks the token. So a row without filters is read once. Filters
are thresholds on the logit, found between the two (`threshold.py`).

The arithmetic of a row depends on the vocabulary's size alone, not on the other rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels.logits import (
    GREEDY_BELOW,
    LOG2_E,
    inverse_temperature_of,
    relative_exp,
    row_of,
)
from sharegen.kernels.threshold import keep_likely

PIECE = 4096  # logits per program of the launches over (row, piece)

GAMMA = tl.constexpr(0x9E3779B97F4A7C15)  # SplitMix64, as in engine/sample/draws.py
MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _uniform(key, position):
    bits = key.to(tl.uint64, bitcast=True) + (position + 1).to(tl.uint64, bitcast=True) * GAMMA
    bits = (bits ^ (bits >> 30)) * MIX_1
    bits = (bits ^ (bits >> 27)) * MIX_2
    bits = bits ^ (bits >> 31)
    return (bits >> 40).to(tl.int64).to(tl.float32) * (1.0 / 16777216.0)


@triton.jit
def _pieces_kernel(
    logits_ptr, raw_ptr, logit_rows_ptr, temperature_ptr,
    low_ptr, high_ptr, mass_ptr, raw_high_ptr, raw_mass_ptr,
    stride_l, stride_r, stride_t, vocab_size, num_pieces,
    SAME: tl.constexpr, HAS_LOGIT_ROWS: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Write what each piece has: its least finite and largest logit and its sum of exponentials; of
    the raw logits the last two.
    """
    row, piece = tl.program_id(0), tl.program_id(1)
    i_token = piece * PIECE + tl.arange(0, PIECE)
    real = i_token < vocab_size
    i_logits = row_of(row, logit_rows_ptr, HAS_LOGIT_ROWS)
    inverse_temperature = inverse_temperature_of(temperature_ptr, row, stride_t)
    i_out = row.to(tl.int64) * num_pieces + piece

    p_raw = raw_ptr + i_logits * stride_r + i_token
    raw = tl.load(p_raw, mask=real, other=float("-inf")).to(tl.float32)
    raw_high = tl.max(raw, 0)
    raw_exp = relative_exp(raw, raw_high, LOG2_E)
    tl.store(raw_high_ptr + i_out, raw_high)
    tl.store(raw_mass_ptr + i_out, tl.sum(raw_exp, 0))
    if SAME:
        x, high = raw, raw_high
    else:
        p_x = logits_ptr + i_logits * stride_l + i_token
        x = tl.load(p_x, mask=real, other=float("-inf")).to(tl.float32)
        high = tl.max(x, 0)
    tl.store(low_ptr + i_out, tl.min(tl.where(x == float("-inf"), float("inf"), x), 0))
    tl.store(high_ptr + i_out, high)
    tl.store(mass_ptr + i_out, tl.sum(relative_exp(x, high, inverse_temperature), 0))


@triton.jit
def _raw_logprob(
    x, raw_high_ptr, raw_mass_ptr, row, num_pieces, NUM_PIECES: tl.constexpr
):  # fmt: skip
    """The log-probability of a logit x of the row, by what its pieces have."""
    i_piece = tl.arange(0, NUM_PIECES)
    i_stats = row.to(tl.int64) * num_pieces + i_piece
    real = i_piece < num_pieces
    highs = tl.load(raw_high_ptr + i_stats, mask=real, other=float("-inf"))
    masses = tl.load(raw_mass_ptr + i_stats, mask=real, other=0.0)
    maximum = tl.max(highs, 0)
    total = tl.sum(masses * relative_exp(highs, maximum, LOG2_E), 0)
    return x - maximum - tl.log2(total) / LOG2_E


@triton.jit
def _pick_kernel(
    logits_ptr, raw_ptr, logit_rows_ptr, temperature_ptr, key_ptr, position_ptr, threshold_ptr,
    high_ptr, mass_ptr, raw_high_ptr, raw_mass_ptr, token_ptr, logprob_ptr,
    stride_l, stride_r, stride_t, stride_key, vocab_size, num_pieces,
    FILTERED: tl.constexpr, HAS_LOGIT_ROWS: tl.constexpr, NUM_PIECES: tl.constexpr,
    PIECE: tl.constexpr, PROCESSED: tl.constexpr,
):  # fmt: skip
    """Pick the row's token, first its piece and then the token in it, and write its
    log-probability: raw, or with PROCESSED of what was drawn from.
    """
    row = tl.program_id(0)
    greedy = tl.load(temperature_ptr + row * stride_t) < GREEDY_BELOW
    inverse_temperature = inverse_temperature_of(temperature_ptr, row, stride_t)
    number = _uniform(tl.load(key_ptr + row * stride_key), tl.load(position_ptr + row))

    i_piece = tl.arange(0, NUM_PIECES)
    i_stats = row.to(tl.int64) * num_pieces + i_piece
    real = i_piece < num_pieces
    highs = tl.load(high_ptr + i_stats, mask=real, other=float("-inf"))
    masses = tl.load(mass_ptr + i_stats, mask=real, other=0.0)
    maximum = tl.max(highs, 0)
    weights = masses * relative_exp(highs, maximum, inverse_temperature)
    # One NaN or infinite logit shows in the sum, and so does a row of nothing but -inf.
    mass = tl.sum(weights, 0)
    drawn = (mass > 0) & (mass < float("inf"))
    running = tl.cumsum(weights, 0)
    target = number * tl.max(running, 0)
    hit = tl.where(greedy, highs == maximum, (running > target) & (weights > 0))
    last = tl.max(tl.where(weights > 0, i_piece, 0), 0)
    piece = tl.minimum(tl.min(tl.where(hit, i_piece, NUM_PIECES), 0), last)
    rest = target - tl.sum(tl.where(i_piece < piece, weights, 0.0), 0)

    i_token = piece * PIECE + tl.arange(0, PIECE)
    i_logits = row_of(row, logit_rows_ptr, HAS_LOGIT_ROWS)
    p_x = logits_ptr + i_logits * stride_l + i_token
    x = tl.load(p_x, mask=i_token < vocab_size, other=float("-inf")).to(tl.float32)
    weight = relative_exp(x, maximum, inverse_temperature)
    if FILTERED:
        weight = tl.where(x >= tl.load(threshold_ptr + row), weight, 0.0)
    hit = tl.where(greedy, x == maximum, (tl.cumsum(weight, 0) > rest) & (weight > 0))
    last = tl.max(tl.where(weight > 0, i_token, 0), 0)  # where rounding left no token above
    token = tl.minimum(tl.min(tl.where(hit, i_token, vocab_size), 0), last)
    tl.store(token_ptr + row, token.to(tl.int64))

    if PROCESSED:
        chosen = tl.load(logits_ptr + i_logits * stride_l + token).to(tl.float32)
        logprob = ((chosen - maximum) * inverse_temperature - tl.log2(mass)) / LOG2_E
    else:
        i_raw = row_of(row, logit_rows_ptr, HAS_LOGIT_ROWS)
        chosen = tl.load(raw_ptr + i_raw * stride_r + token).to(tl.float32)
        logprob = _raw_logprob(chosen, raw_high_ptr, raw_mass_ptr, row, num_pieces, NUM_PIECES)
    tl.store(logprob_ptr + row, tl.where(drawn, logprob, float("nan")))


@triton.jit
def _given_kernel(
    raw_ptr, logit_rows_ptr, raw_high_ptr, raw_mass_ptr, token_ptr, logprob_ptr,
    stride_r, num_tokens, num_pieces,
    HAS_LOGIT_ROWS: tl.constexpr, NUM_PIECES: tl.constexpr,
):  # fmt: skip
    """Write the log-probability of each token that is given for the row."""
    row = tl.program_id(0)
    p_raw = raw_ptr + row_of(row, logit_rows_ptr, HAS_LOGIT_ROWS) * stride_r
    for i in range(num_tokens):
        i_out = row.to(tl.int64) * num_tokens + i
        x = tl.load(p_raw + tl.load(token_ptr + i_out)).to(tl.float32)
        logprob = _raw_logprob(x, raw_high_ptr, raw_mass_ptr, row, num_pieces, NUM_PIECES)
        tl.store(logprob_ptr + i_out, logprob)


def draw(
    logits: torch.Tensor, raw: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor,
    top_p: torch.Tensor, min_p: torch.Tensor, keys: torch.Tensor, positions: torch.Tensor,
    logit_rows: torch.Tensor | None = None, *, filtered: bool, processed: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Draw one token a row; the same as `sharegen.engine.sample.sampler.draw`.

    Args:
        logits: [m, vocab_size], after biases and penalties; its last stride is 1.
        raw: [m, vocab_size], before these; the same tensor where there are none.
        temperature, top_p, min_p: [n] float32.
        top_k: [n] int64, vocab_size for no limit.
        keys, positions: [n] int64.
        logit_rows: [n] int64, the row of both that each draw reads, or None for m = n.
        filtered: whether some row has top-k, top-p or min-p.
        processed: whether log-probabilities are of what is drawn from, and not of raw.

    Returns:
        Token ids [n] int64, and their log-probabilities [n] float32, NaN where a row is not a
        distribution.
    """
    num_rows, vocab_size = len(positions), logits.shape[1]
    assert logits.stride(1) == 1 and raw.stride(1) == 1 and raw.shape == logits.shape
    assert positions.is_contiguous() and (logit_rows is None or logit_rows.is_contiguous())
    assert all(len(a) == num_rows for a in (temperature, top_k, top_p, min_p, keys))
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    if not num_rows:
        return tokens, logprobs
    piece = min(PIECE, triton.next_power_of_2(vocab_size))
    num_pieces = triton.cdiv(vocab_size, piece)
    low, high, mass, raw_high, raw_mass = torch.empty(
        5, num_rows, num_pieces, dtype=torch.float32, device=logits.device
    ).unbind()
    raw = logits if processed else raw
    same, has_rows = logits.data_ptr() == raw.data_ptr(), logit_rows is not None
    if same:
        raw_high = high
    which = positions if logit_rows is None else logit_rows
    threshold = logprobs  # written below, before the log-probabilities
    _pieces_kernel[(num_rows, num_pieces)](
        logits, raw, which, temperature, low, high, mass, raw_high, raw_mass,
        logits.stride(0), raw.stride(0), temperature.stride(0), vocab_size, num_pieces,
        SAME=same, HAS_LOGIT_ROWS=has_rows, PIECE=piece, num_warps=4,
    )  # fmt: skip
    if filtered:
        keep_likely(
            logits, which, temperature, top_k, top_p, min_p, low, high, mass, threshold, piece,
            has_logit_rows=has_rows,
        )  # fmt: skip
    _pick_kernel[(num_rows,)](
        logits, raw, which, temperature, keys, positions, threshold,
        high, mass, raw_high, raw_mass, tokens, logprobs,
        logits.stride(0), raw.stride(0), temperature.stride(0), keys.stride(0),
        vocab_size, num_pieces,
        FILTERED=filtered, HAS_LOGIT_ROWS=has_rows, NUM_PIECES=triton.next_power_of_2(num_pieces),
        PIECE=piece, PROCESSED=processed, num_warps=4,
    )  # fmt: skip
    return tokens, logprobs


def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, logit_rows: torch.Tensor | None = None
) -> torch.Tensor:
    """Log-probabilities [n, k] of given tokens [n, k], with the bits that `draw` gives them.

    logits: [m, vocab_size]; its last stride is 1. logit_rows: as for `draw`.
    """
    (num_rows, num_tokens), vocab_size = tokens.shape, logits.shape[1]
    assert logits.stride(1) == 1 and tokens.is_contiguous()
    logprobs = torch.empty(num_rows, num_tokens, dtype=torch.float32, device=logits.device)
    if not num_rows:
        return logprobs
    piece = min(PIECE, triton.next_power_of_2(vocab_size))
    num_pieces = triton.cdiv(vocab_size, piece)
    low, high, mass, raw_mass = logits.new_empty(
        4, num_rows, num_pieces, dtype=torch.float32
    ).unbind()
    which, has_rows = tokens if logit_rows is None else logit_rows, logit_rows is not None
    _pieces_kernel[(num_rows, num_pieces)](
        logits, logits, which, logits.new_ones(1, dtype=torch.float32),
        low, high, mass, high, raw_mass, logits.stride(0), logits.stride(0), 0,
        vocab_size, num_pieces, SAME=True, HAS_LOGIT_ROWS=has_rows, PIECE=piece, num_warps=4,
    )  # fmt: skip
    _given_kernel[(num_rows,)](
        logits, which, high, raw_mass, tokens, logprobs, logits.stride(0), num_tokens, num_pieces,
        HAS_LOGIT_ROWS=has_rows, NUM_PIECES=triton.next_power_of_2(num_pieces), num_warps=4,
    )  # fmt: skip
    return logprobs
