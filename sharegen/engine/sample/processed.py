"""Log-probabilities of the likeliest tokens under the distribution that is drawn from.

`sample` tells that of the token which it drew, as it draws; this is for those who ask for more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sharegen.engine.sample.sampler import adjusted, filters, largest, parts_of, scaled, subset
from sharegen.engine.sample.state import Features, SamplingState


def processed_top_logprobs(
    logits: Tensor,
    state: SamplingState,
    positions: Tensor,
    tokens: Tensor,
    logprobs: Tensor,
    top: int,
    *,
    rows: slice | Tensor | None = None,
    logit_rows: Tensor | None = None,
    history: Tensor | None = None,
    features: Features | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Places of the drawn tokens, and the likeliest, under the distribution that was drawn from.

    tokens, logprobs: [n], from `sample` with `features.processed`; the rest as it takes them.
    Returns the places int64 [n], and the `top` likeliest tokens int64 [n, top] with their
    log-probabilities float32 [n, top], best first; -inf for those that a filter cut.

    What filters leave are a row's likeliest tokens, all of them down to some place. So no token
    above a drawn one is cut.
    """
    features = state.features() if features is None else features
    rows = slice(0, len(tokens)) if rows is None else rows
    parts = []
    for part in parts_of(len(tokens), logits):
        changed = logits[part] if logit_rows is None else logits[logit_rows[part]]
        of_part = subset(rows, part)
        if features.adjusted:
            changed = adjusted(changed, state, of_part, positions[part], history, features)
        own = changed.gather(-1, tokens[part, None])
        places = (changed > own).sum(-1) + 1
        best, ids = largest(changed, min(top, changed.shape[1]))
        temperature = state.temperature[of_part]
        normaliser = scaled(own.float(), temperature) - logprobs[part, None]
        found = scaled(best.float(), temperature) - normaliser
        if features.filtered:
            found = found.masked_fill(_cut(best, found, state, of_part), -torch.inf)
        parts.append((places, ids, torch.where(best == own, logprobs[part, None], found)))
    places, ids, best = (torch.cat(column) for column in zip(*parts, strict=True))
    return places, ids, best


def _cut(best: Tensor, logprobs: Tensor, state: SamplingState, rows: slice | Tensor) -> Tensor:
    """Which of the likeliest tokens the rows' filters cut: bool [n, top].

    best, logprobs: [n, top], logits in falling order and what the tokens' log-probabilities are if
    they are not cut. A token that top-p cuts has all the mass above it.
    """
    temperature, top_k = state.temperature[rows], state.top_k[rows]
    top_p, min_p = state.top_p[rows], state.min_p[rows]
    asking = filters(state.vocab_size, temperature, top_k, top_p, min_p)
    index = torch.arange(best.shape[1], device=best.device)
    is_new = torch.ones_like(best, dtype=torch.bool)
    is_new[:, 1:] = best[:, 1:] != best[:, :-1]
    num_above = torch.where(is_new, index, 0).cummax(-1).values  # of equals, that of the first
    mass = logprobs.double().exp()
    above = mass.cumsum(-1).sub(mass).gather(-1, num_above)
    unlikely = mass < min_p[:, None] * mass[:, :1] * (1 - 1e-6)
    beyond = (top_p[:, None] < 1) & (above + mass / 2 >= 1)
    return asking[:, None] & ((num_above >= top_k[:, None]) | unlikely | beyond)
