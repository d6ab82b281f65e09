"""From logits to tokens: edits, penalties, temperature, filters, one uniform number a token.

The filters are those of transformers' warpers, in their order: temperature, top-k, top-p, min-p.
Each is a threshold, and what ties with the threshold stays. The token is the inverse of the
cumulative distribution over the survivors in vocabulary order. On a CPU a row's result does not
depend on the other rows, bit for bit: everything here is elementwise, or a reduction whose order
is that of the row alone (softmax and cumsum over the last dimension, never `sum`, whose order
depends on the number of rows). On a GPU a kernel of the same signature does `draw`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch
from torch import Tensor

from sharegen.engine.core.request import GREEDY_BELOW
from sharegen.engine.sample.draws import uniform
from sharegen.engine.sample.filters import survivors
from sharegen.engine.sample.penalties import penalise
from sharegen.engine.sample.state import Features, SamplingState

__all__ = [
    "Features", "SamplingState", "sample", "token_logprobs", "top_logprobs", "uniform",
]  # fmt: skip

PART_ELEMENTS = {"cpu": 1 << 19, "cuda": 1 << 26}
"""Logits worked on at a time: what stays in a CPU's cache; what a GPU's memory can spare."""

_SEGMENT = 128  # logits of which only the largest is compared with other segments' at first


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

    Args:
        logits: [m, vocab_size], any float type.
        state: what the rows' requests ask for.
        positions: [n] int64, the index of the token in its sample's output (0 for the first).
        rows: which rows of `state` and `history`, a slice with a start or an int64 tensor; by
            default the first n.
        logit_rows: [n] int64, which row of logits each sequence reads (the samples of one prompt
            share one for their first token), or None for m = n.
        history: [max_rows, L] integers, each row's output so far and -1 beyond; None while all are
            empty.
        features: from `state.features()`, what to work out; by default that of all rows.

    Returns:
        Token ids [n] int64, and their log-probabilities [n] float32 under the raw distribution
        (log_softmax of the logits as they came), or with `features.processed` under the one that
        they were drawn from; a greedy row's has temperature 1 and no filters. Where a row is no
        distribution (a logit is NaN or +inf, or all are -inf) the log-probability is NaN, and the
        token any of the vocabulary.
    """
    count = len(positions)
    features = state.features() if features is None else features
    rows = slice(0, count) if rows is None else rows
    drawn = []
    draw_rows = _operations(logits.is_cuda).draw
    whole = draw_rows is not draw and not features.adjusted  # the kernel makes no large tensors
    for part in [slice(0, count)] if whole else parts_of(count, logits):
        of_part = subset(rows, part)
        raw = logits[part] if logit_rows is None else logits
        which = None if logit_rows is None else logit_rows[part]
        changed = raw
        if features.adjusted:
            raw, which = (raw if which is None else raw[which]), None
            changed = adjusted(raw, state, of_part, positions[part], history, features)
        asked = (
            state.temperature[of_part],
            state.top_k[of_part],
            state.top_p[of_part],
            state.min_p[of_part],
            state.keys[of_part],
            positions[part],
            which,
        )
        how = {"filtered": features.filtered, "processed": features.processed}
        drawn.append(draw_rows(changed, raw, *asked, **how))
        if features.steady and features.adjusted:  # in float32 the kernel adds up in another order
            same = (changed == raw).all(-1)
            plain = draw_rows(raw, raw, *asked, **how)
            tokens, logprobs = drawn[-1]
            drawn[-1] = plain[0].where(same, tokens), plain[1].where(same, logprobs)
    if len(drawn) == 1:
        return drawn[0]
    tokens, logprobs = (torch.cat(column) for column in zip(*drawn, strict=True))
    return tokens, logprobs


def token_logprobs(
    logits: Tensor, tokens: Tensor, top: int, logit_rows: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities under the raw distribution, of given tokens and of the likeliest.

    A token has the bits that `sample` gives it where it is drawn.

    logits: [m, V]; tokens: int64 [n], such as those that follow in a prompt; logit_rows: as for
    `sample`. Returns float32 [n], and the `top` likeliest tokens int64 [n, top] with theirs float32
    [n, top], best first.
    """
    by_kernel = _operations(logits.is_cuda).token_logprobs
    parts = []
    for part in parts_of(len(tokens), logits):
        raw = logits[part] if logit_rows is None else logits
        which = None if logit_rows is None else logit_rows[part]
        if by_kernel is not None:
            ids = largest(raw if which is None else raw[which], min(top, logits.shape[1]))[1]
            found = by_kernel(raw, torch.cat([tokens[part, None], ids], 1), which)
            parts.append((found[:, 0], ids, found[:, 1:]))
            continue
        logprobs = _rows_of(raw, which).log_softmax(-1)
        best, ids = largest(logprobs, min(top, logits.shape[1]))
        parts.append((_chosen(logprobs, tokens[part]), ids, best))
    chosen, ids, best = (torch.cat(column) for column in zip(*parts, strict=True))
    return chosen, ids, best


def top_logprobs(
    logits: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    top: int,
    logit_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The `top` likeliest tokens under the raw distribution, beside those that were drawn.

    tokens, logprobs: [n], from `sample` of the same logits and logit_rows. What was drawn tells a
    row's normaliser, so that no softmax is needed. Returns int64 and float32 [n, top], best first.
    """
    parts = []
    for part in parts_of(len(tokens), logits):
        raw = logits[part] if logit_rows is None else logits[logit_rows[part]]
        best, ids = largest(raw, min(top, logits.shape[1]))
        drawn, of_drawn = tokens[part, None], logprobs[part, None]
        logit = raw.gather(-1, drawn)
        normaliser = logit.float() - of_drawn
        parts.append((ids, torch.where(best == logit, of_drawn, best.float() - normaliser)))
    ids, best = (torch.cat(column) for column in zip(*parts, strict=True))
    return ids, best


def ranks(logits: Tensor, tokens: Tensor, logit_rows: Tensor | None = None) -> Tensor:
    """Return the place of each token among all, 1 for the likeliest: int64 [n].

    logits: [m, V]; tokens: int64 [n]; logit_rows: as for `sample`. Equal ones share a place.
    """
    parts = []
    for part in parts_of(len(tokens), logits):
        raw = logits[part] if logit_rows is None else logits[logit_rows[part]]
        parts.append((raw > raw.gather(-1, tokens[part, None])).sum(-1) + 1)
    return torch.cat(parts)


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and where they are, both [n, count], in falling order.

    values: [n, V]. The `count` largest of many lie in the `count` segments whose own largest are
    the largest, so that all but these are read once.
    """
    size = values.shape[1]
    segments = size // _SEGMENT
    if segments < 4 * count:
        return values.topk(count, -1)
    end = segments * _SEGMENT
    highest = _operations(values.is_cuda).segment_maxima(values, _SEGMENT)
    inside = torch.arange(_SEGMENT, device=values.device)
    chosen = highest.topk(count, -1, sorted=False).indices[:, :, None] * _SEGMENT + inside
    tail = torch.arange(end, size, device=values.device).expand(len(values), -1)
    places = torch.cat([chosen.flatten(1), tail], 1)
    largest, index = values.gather(1, places).topk(count, -1)
    return largest, places.gather(1, index)


def segment_maxima(values: Tensor, size: int) -> Tensor:
    """Return [n, V // size], the largest of every `size` values; what does not fill a segment is
    left out.

    values: [n, V].
    """
    segments = values.shape[1] // size
    return values[:, : segments * size].unflatten(1, (segments, size)).amax(-1)


def adjusted(
    logits: Tensor,
    state: SamplingState,
    rows: slice | Tensor,
    positions: Tensor,
    history: Tensor | None,
    features: Features,
) -> Tensor:
    """Return the logits [n, V], of any float type, after what the rows bar, add and penalise.

    A new tensor in float32 where they do.
    """
    if features.allowed:
        logits = state.allowed.apply(logits, rows)
    if features.masked:
        logits = state.masks.apply(logits, rows)
    if features.edit_slots:
        logits = state.edits.apply(logits, rows, positions, history)
    if features.penalised:
        seen = state.prompt_tokens.seen
        logits = _operations(logits.is_cuda).penalise(
            logits,
            seen[rows] if features.repeats and seen is not None else None,
            None if history is None else history[rows],
            state.repetition[rows],
            state.frequency[rows],
            state.presence[rows],
        )
    return logits


def draw(
    logits: Tensor,
    raw: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
    positions: Tensor,
    logit_rows: Tensor | None = None,
    *,
    filtered: bool,
    processed: bool = False,
) -> tuple[Tensor, Tensor]:
    """Draw one token a row.

    Args:
        logits: [m, V], after edits and penalties.
        raw: [m, V], before these; the same tensor where there are none.
        temperature, top_p, min_p: [n] float32.
        top_k: [n] int64, V for no limit.
        keys, positions: [n] int64.
        logit_rows: [n] int64, the row of both that each draw reads, or None for m = n.
        filtered: whether some row has top-k, top-p or min-p.
        processed: whether log-probabilities are of what is drawn from, and not of raw.

    Returns:
        Token ids [n] int64, and their log-probabilities [n] float32, NaN where a row is not a
        distribution.
    """
    before = _rows_of(raw, logit_rows)
    after = before if logits is raw else _rows_of(logits, logit_rows)
    greedy = temperature < GREEDY_BELOW
    on_host = not logits.is_cuda  # where looking at the values costs nothing
    kept: Tensor | None = None  # mass that the filters leave
    if on_host and greedy.all():
        tokens = after.argmax(-1)
    else:
        weights = token_weights(after, temperature, top_k, top_p, min_p, filtered=filtered)
        tokens = inverse_cdf(weights, uniform(keys, positions))
        if not on_host or greedy.any():
            tokens = torch.where(greedy, after.argmax(-1), tokens)
        if filtered and processed:
            asking = filters(logits.shape[1], temperature, top_k, top_p, min_p)
            kept = weights.cumsum(-1)[:, -1].masked_fill(~asking, 1.0)
    of = scaled(after, temperature) if processed else before
    logprobs = _chosen(of.log_softmax(-1), tokens)  # NaN where a logit is NaN or infinite
    if kept is not None:
        logprobs = logprobs - kept.log()
    if after is not before:
        logprobs = logprobs.where(after.amax(-1).isfinite(), torch.nan)
    return tokens, logprobs


def scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    """Divide logits [n, V] by the rows' temperatures [n]; greedy rows stay as they are."""
    return logits / temperature.masked_fill(temperature < GREEDY_BELOW, 1.0)[:, None]


def filters(
    vocab_size: int, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Which rows draw, and ask for top-k, top-p or min-p: bool [n]."""
    random = temperature >= GREEDY_BELOW
    return random & ((top_k < vocab_size) | (top_p < 1) | (min_p > 0))


def token_weights(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *,
    filtered: bool,
) -> Tensor:
    """What a draw goes by: the softmax at the rows' temperatures, 0 where a filter cuts.

    logits: float32 [n, V]; the others as for `draw`. Returns float32 [n, V], not normalised again;
    greedy rows come out at temperature 1.
    """
    at_temperature = scaled(logits, temperature)
    weights = at_temperature.softmax(-1)
    if filtered:
        asking = filters(logits.shape[1], temperature, top_k, top_p, min_p)
        rows = asking.nonzero().squeeze(-1)
        theirs = weights[rows]
        kept = survivors(at_temperature[rows], theirs, top_k[rows], top_p[rows], min_p[rows])
        weights[rows] = theirs.masked_fill_(~kept, 0.0)
    return weights


def inverse_cdf(weights: Tensor, numbers: Tensor) -> Tensor:
    """Return the first token at which the weights' running sum exceeds `numbers` of the whole.

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
    # Only NaN logits leave no token above the target; whoever reads the draw drops it.
    found = torch.searchsorted(cumulative, target, right=True).squeeze(-1)
    return found.clamp(max=weights.shape[1] - 1)


class _Operations(NamedTuple):
    draw: Callable[..., tuple[Tensor, Tensor]]
    penalise: Callable[..., Tensor]
    segment_maxima: Callable[..., Tensor]
    token_logprobs: Callable[..., Tensor] | None = None


@cache
def _operations(on_gpu: bool) -> _Operations:
    """The kernels on a GPU, where Triton is there, else plain torch."""
    if not on_gpu or find_spec("triton") is None:
        return _Operations(draw, penalise, segment_maxima)
    from sharegen.kernels import draw as draw_kernel
    from sharegen.kernels import penalise as penalise_kernel
    from sharegen.kernels import segments

    return _Operations(
        draw_kernel.draw, penalise_kernel.penalise, segments.segment_maxima,
        draw_kernel.token_logprobs,
    )  # fmt: skip


def parts_of(count: int, logits: Tensor) -> list[slice]:
    """Slices of the rows to work on at a time (one, perhaps empty, where they are few)."""
    step = max(1, PART_ELEMENTS[logits.device.type] // logits.shape[1])
    return [slice(i, min(i + step, count)) for i in range(0, max(count, 1), step)]


def _rows_of(logits: Tensor, which: Tensor | None) -> Tensor:
    return (logits if which is None else logits[which]).float()


def subset(rows: slice | Tensor, part: slice) -> slice | Tensor:
    if isinstance(rows, slice):
        return slice(rows.start + part.start, rows.start + part.stop)
    return rows[part]


def _chosen(values: Tensor, tokens: Tensor) -> Tensor:
    return values.gather(-1, tokens[:, None]).squeeze(-1)
