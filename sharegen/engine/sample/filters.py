"""Top-k, top-p and min-p as thresholds on the logit: what ties with a threshold stays.

Those of transformers' warpers, in their order (Fan et al. 2018; Holtzman et al. 2020; Nguyen et
al. 2024). Nothing here depends on the other rows of the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SHORTLIST = 64
"""How many of a row's best tokens are looked at before the whole row is sorted."""

_SORTED_AT_ONCE = 4096
"""A vocabulary up to this is sorted sooner than its best are found."""


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
    """The least logit that top-k and top-p leave: float32 [n], -inf where they are off.

    On a CPU only the rows that ask are looked at; in a large vocabulary first their best SHORTLIST
    tokens, which nearly always hold the answer, and the whole row only where they don't. Which way
    a row goes depends on that row alone.
    """
    vocab_size = scaled.shape[1]
    if scaled.is_cuda:
        return _threshold_among(scaled, weights, top_k, top_p, vocab_size)[0]
    threshold = torch.full_like(top_p, -torch.inf)
    rows = ((top_k < vocab_size) | (top_p < 1)).nonzero().squeeze(-1)
    for width in (SHORTLIST, vocab_size) if vocab_size > _SORTED_AT_ONCE else (vocab_size,):
        if len(rows):
            threshold[rows], found = _threshold_among(
                scaled[rows], weights[rows], top_k[rows], top_p[rows], width
            )
            rows = rows[~found]
    return threshold


def _threshold_among(
    scaled: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """The threshold as far as the best `width` tokens tell, and whether they do: [n], bool [n]."""
    vocab_size = scaled.shape[1]
    if width == vocab_size:  # the softmax has the order of the logits
        ordered, mass = _descending(scaled), _descending(weights)
    else:
        ordered, index = scaled.topk(width, -1)
        mass = weights.gather(-1, index)
    unlimited = top_k >= vocab_size
    kth = ordered.gather(-1, top_k.clamp(max=width)[:, None] - 1)
    kth = kth.masked_fill(unlimited[:, None], -torch.inf)
    mass = mass.masked_fill(ordered < kth, 0.0).double()
    cumulative = mass.cumsum(-1)
    left = torch.where(unlimited, 1.0, cumulative[:, -1])
    wanted = (top_p.double() * left)[:, None]
    last = torch.searchsorted(cumulative, wanted).clamp(max=width - 1)  # as many are above it
    all_mass = top_p >= 1
    pth = ordered.gather(-1, last).squeeze(-1).masked_fill(all_mass, -torch.inf)
    lowest = ordered[:, -1]
    found_k = unlimited | ((top_k <= width) & (lowest < kth.squeeze(-1)))
    found_p = all_mass | (lowest < pth)
    return torch.maximum(kth.squeeze(-1), pth), found_k & found_p


def _descending(values: Tensor) -> Tensor:
    """Sort each row's values, largest first."""
    if values.is_cuda:
        return values.sort(-1, descending=True).values
    ascending = torch.from_numpy(np.sort(values.numpy(), axis=-1))  # torch's takes 20 times as long
    return ascending.flip(-1)
