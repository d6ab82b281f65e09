"""From logits to tokens: edits, penalties, temperature, filters, and one uniform number a token.

The filters are those of transformers' warpers, in their order: temperature, top-k, top-p, min-p.
Each is a threshold, and what ties with the threshold stays. The token is the inverse of the
cumulative distribution over the survivors in vocabulary order. On a CPU a row's result does not
depend on the other rows, bit for bit: everything here is elementwise, or a reduction whose order
is that of the row alone (softmax and cumsum over the last dimension, never `sum`, whose order
depends on the number of rows).
"""

from __future__ import annotations

import torch
from torch import Tensor

from sharegen.engine.draws import row_key, uniform
from sharegen.engine.penalties import penalise
from sharegen.engine.sampling_state import GREEDY_BELOW, Features, SamplingState

__all__ = ["Features", "SamplingState", "row_key", "sample", "token_logprobs", "uniform"]

CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Logits worked on at a time: what stays in a CPU's cache; what a GPU's memory can spare."""

NARROW = 64
"""How many of a row's best tokens are looked at before the whole row is sorted."""


def sample(
    logits: Tensor,
    state: SamplingState,
    positions: Tensor,
    *,
    rows: slice | Tensor | None = None,
    logit_rows: Tensor | None = None,
    history: Tensor | None = None,
    features: Features | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw the next token of n rows.

    logits: [m, vocab_size], any float type; m = n, unless logit_rows int64 [n] says which row of
    logits each sequence reads (the samples of one prompt share one for their first token).
    positions: int64 [n], the index of the token in its sample's output (0 for the first).
    rows: which rows of `state` and `history`, a slice with a start or an int64 tensor; the first n
    by default.
    history: int64 [max_rows, L], each row's output so far and -1 beyond; None while all are empty.
    features: from `state.features()`, what to work out; all the state's rows' by default.

    Returns token_ids int64 [n] and their log-probabilities float32 [n] under the raw distribution
    (log_softmax of the logits as they came).
    """
    count = len(positions)
    features = state.features() if features is None else features
    rows = slice(0, count) if rows is None else rows
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(count, dtype=torch.float32, device=logits.device)
    for part in _parts(count, logits):
        raw = _rows_of(logits, logit_rows, part)
        tokens[part] = _draw(raw, state, _subset(rows, part), positions[part], history, features)
        logprobs[part] = _chosen(raw.log_softmax(-1), tokens[part])
    return tokens, logprobs


def token_logprobs(
    logits: Tensor, tokens: Tensor, top: int, logit_rows: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities under the raw distribution, of given tokens and of the likeliest.

    logits: [m, V]; tokens: int64 [n], drawn from them or, for a prompt's, the tokens that follow;
    logit_rows: as for `sample`. Returns float32 [n], and the `top` likeliest tokens int64 [n, top]
    with theirs float32 [n, top], best first.
    """
    parts = []
    for part in _parts(len(tokens), logits):
        logprobs = _rows_of(logits, logit_rows, part).log_softmax(-1)
        best, ids = logprobs.topk(min(top, logits.shape[1]), -1)
        parts.append((_chosen(logprobs, tokens[part]), ids, best))
    chosen, ids, best = (torch.cat(column) for column in zip(*parts, strict=True))
    return chosen, ids, best


def _parts(count: int, logits: Tensor) -> list[slice]:
    """Slices of the rows to work on at a time (one, perhaps empty, where they are few)."""
    step = max(1, CHUNK_ELEMENTS[logits.device.type] // logits.shape[1])
    return [slice(i, min(i + step, count)) for i in range(0, max(count, 1), step)]


def _rows_of(logits: Tensor, logit_rows: Tensor | None, part: slice) -> Tensor:
    return (logits[part] if logit_rows is None else logits[logit_rows[part]]).float()


def _subset(rows: slice | Tensor, part: slice) -> slice | Tensor:
    if isinstance(rows, slice):
        return slice(rows.start + part.start, rows.start + part.stop)
    return rows[part]


def _chosen(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(-1, tokens[:, None]).squeeze(-1)


def adjusted(
    logits: Tensor,
    state: SamplingState,
    rows: slice | Tensor,
    positions: Tensor,
    history: Tensor | None,
    features: Features,
) -> Tensor:
    """The logits float32 [n, V] after the rows' edits and penalties."""
    if features.edit_slots:
        logits = state.edits.apply(logits, rows, positions, history)
    if features.penalised:
        seen = state.prompt_tokens.seen
        logits = penalise(
            logits,
            seen[rows] if features.repeats and seen is not None else None,
            None if history is None else history[rows],
            state.repetition[rows],
            state.frequency[rows],
            state.presence[rows],
        )
    return logits


def _draw(
    logits: Tensor,
    state: SamplingState,
    rows: slice | Tensor,
    positions: Tensor,
    history: Tensor | None,
    features: Features,
) -> Tensor:
    logits = adjusted(logits, state, rows, positions, history, features)
    if not features.random:
        return logits.argmax(-1)
    weights = token_weights(logits, state, rows, features)
    drawn = inverse_cdf(weights, uniform(state.keys[rows], positions))
    if not features.greedy:
        return drawn
    return torch.where(state.temperature[rows] < GREEDY_BELOW, logits.argmax(-1), drawn)


def token_weights(
    logits: Tensor, state: SamplingState, rows: slice | Tensor, features: Features
) -> Tensor:
    """What the draw goes by: the softmax at the rows' temperatures, 0 where a filter cuts.

    logits: float32 [n, V], already adjusted. Returns float32 [n, V], not normalised again; greedy
    rows come out at temperature 1.
    """
    temperature = state.temperature[rows]
    scaled = logits / temperature.masked_fill(temperature < GREEDY_BELOW, 1.0)[:, None]
    weights = scaled.softmax(-1)
    if not features.filtered:
        return weights
    keep = survivors(scaled, weights, state.top_k[rows], state.top_p[rows], state.min_p[rows])
    return weights.masked_fill(~keep, 0.0)


def survivors(
    scaled: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Which tokens top-k, top-p and min-p leave: bool [n, V].

    scaled: float32 [n, V] logits over the temperature; weights: their softmax; top_k int64,
    top_p and min_p float32, all [n]. A token survives top-k if fewer than k are above it; top-p
    if the mass above it is below p of what top-k left; min-p if it has min_p of the best's mass.
    """
    least = min_p * weights.amax(-1)
    threshold = _threshold(scaled, weights, top_k, top_p)
    return (scaled >= threshold[:, None]) & (weights >= least[:, None])


def _threshold(scaled: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The least logit that top-k and top-p leave: float32 [n].

    On a CPU a row's best NARROW tokens nearly always hold the answer; only the rows where they
    don't are sorted. Which way a row goes depends on that row alone.
    """
    vocab_size = scaled.shape[1]
    if scaled.is_cuda or vocab_size <= NARROW:
        return _threshold_among(scaled, weights, top_k, top_p, vocab_size)[0]
    threshold, found = _threshold_among(scaled, weights, top_k, top_p, NARROW)
    rest = (~found).nonzero().squeeze(-1)
    if len(rest):
        threshold[rest] = _threshold_among(
            scaled[rest], weights[rest], top_k[rest], top_p[rest], vocab_size
        )[0]
    return threshold


def _threshold_among(
    scaled: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """The threshold as far as the best `width` tokens tell, and whether they do: [n], bool [n]."""
    vocab_size = scaled.shape[1]
    if width == vocab_size:
        ordered, index = scaled.sort(-1, descending=True)
    else:
        ordered, index = scaled.topk(width, -1)
    unlimited = top_k >= vocab_size
    kth = ordered.gather(-1, top_k.clamp(max=width)[:, None] - 1)
    kth = kth.masked_fill(unlimited[:, None], -torch.inf)
    mass = weights.gather(-1, index).masked_fill(ordered < kth, 0.0).double()
    cumulative = mass.cumsum(-1)
    left = torch.where(unlimited, 1.0, cumulative[:, -1])
    wanted = (top_p.double() * left)[:, None]
    last = (cumulative - mass < wanted).sum(-1, keepdim=True) - 1
    all_mass = top_p >= 1
    pth = ordered.gather(-1, last.clamp(min=0)).squeeze(-1).masked_fill(all_mass, -torch.inf)
    lowest = ordered[:, -1]
    found_k = unlimited | ((top_k <= width) & (lowest < kth.squeeze(-1)))
    found_p = all_mass | (lowest < pth)
    return torch.maximum(kth.squeeze(-1), pth), found_k & found_p


def inverse_cdf(weights: Tensor, numbers: Tensor) -> Tensor:
    """The first token at which the weights' running sum exceeds `numbers` of the whole.

    weights: float32 [n, V], at least 0, in any scale; numbers: float32 [n] in [0, 1).
    Returns int64 [n]; never a token of weight 0.
    """
    cumulative = weights.cumsum(-1)
    target = numbers[:, None] * cumulative[:, -1:]
    if weights.is_cuda:
        # A parallel scan may round a running sum up across a token of weight 0.
        hits = (cumulative > target) & (weights > 0)
        first = hits.to(torch.int8).argmax(-1)
        return torch.where(hits.any(-1), first, weights.argmax(-1))
    # Only NaN logits leave no token above the target; the clamp keeps the index in the vocabulary.
    found = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    return found.clamp(max=weights.shape[1] - 1)
