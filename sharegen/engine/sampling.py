"""From logits to tokens: temperature, filters, and one uniform number a token.

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
from sharegen.engine.sampling_state import GREEDY_BELOW, Features, SamplingState

__all__ = ["Features", "SamplingState", "row_key", "sample", "uniform"]

CHUNK_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Logits worked on at a time: what stays in a CPU's cache; what a GPU's memory can spare."""


def sample(
    logits: Tensor,
    state: SamplingState,
    positions: Tensor,
    *,
    rows: slice | Tensor | None = None,
    logit_rows: Tensor | None = None,
    features: Features | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw the next token of n rows.

    logits: [m, vocab_size], any float type; m = n, unless logit_rows int64 [n] says which row of
    logits each sequence reads (the samples of one prompt share one for their first token).
    positions: int64 [n], the index of the token in its sample's output (0 for the first).
    rows: which rows of `state`, a slice with a start or an int64 tensor; the first n by default.
    features: from `state.features()`, what to work out; the live rows' by default.

    Returns token_ids int64 [n] and their log-probabilities float32 [n] under the raw distribution
    (log_softmax of the logits as they came).
    """
    count = len(positions)
    features = state.features() if features is None else features
    rows = slice(0, count) if rows is None else rows
    step = max(1, CHUNK_ELEMENTS[logits.device.type] // logits.shape[1])
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(count, dtype=torch.float32, device=logits.device)
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        raw = (logits[part] if logit_rows is None else logits[logit_rows[part]]).float()
        tokens[part] = _draw(raw, state, _subset(rows, part), positions[part], features)
        logprobs[part] = _chosen(raw.log_softmax(-1), tokens[part])
    return tokens, logprobs


def _subset(rows: slice | Tensor, part: slice) -> slice | Tensor:
    if isinstance(rows, slice):
        return slice(rows.start + part.start, rows.start + part.stop)
    return rows[part]


def _chosen(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(-1, tokens[:, None]).squeeze(-1)


def _draw(
    logits: Tensor,
    state: SamplingState,
    rows: slice | Tensor,
    positions: Tensor,
    features: Features,
) -> Tensor:
    if features.greedy:
        return logits.argmax(-1)
    temperature = state.temperature[rows]
    greedy = temperature < GREEDY_BELOW
    scaled = logits / temperature.masked_fill(greedy, 1.0)[:, None]
    weights = scaled.softmax(-1)
    if features.filtered:
        keep = survivors(scaled, weights, state.top_k[rows], state.top_p[rows], state.min_p[rows])
        weights = weights.masked_fill(~keep, 0.0)
    drawn = inverse_cdf(weights, uniform(state.keys[rows], positions))
    return torch.where(greedy, logits.argmax(-1), drawn)


def survivors(
    scaled: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Which tokens top-k, top-p and min-p leave: bool [n, V].

    scaled: float32 [n, V] logits over the temperature; weights: their softmax; top_k int64,
    top_p and min_p float32, all [n]. A token survives top-k if fewer than k are above it; top-p
    if the mass above it is below p of what top-k left; min-p if it has min_p of the best's mass.
    """
    ordered, index = scaled.sort(-1, descending=True)
    kth = ordered.gather(-1, top_k[:, None] - 1)
    mass = weights.gather(-1, index).masked_fill(ordered < kth, 0.0).double()
    cumulative = mass.cumsum(-1)
    in_nucleus = cumulative - mass < top_p[:, None] * cumulative[:, -1:]
    last = in_nucleus.sum(-1, keepdim=True) - 1
    pth = ordered.gather(-1, last).masked_fill(top_p[:, None] >= 1, -torch.inf)
    least = min_p[:, None] * weights.amax(-1, keepdim=True)
    return (scaled >= torch.maximum(kth, pth)) & (weights >= least)


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
