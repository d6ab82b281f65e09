"""Attention over some of a row's keys, and how several such parts become one.

softmax(q K^T) V over all keys equals the parts over some of them, each with its maximum and its
sum, merged (Hydragen, section 3.1, equations 2-5).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NOTHING = -1e30
"""The maximum over no keys: finite, so that differences are."""


@dataclass(frozen=True)
class Partial:
    """Attention over some of the keys: sum of exp(score - top) v, and of exp(score - top).

    out: [rows, num_heads, value_size], top, total: [rows, num_heads]; float32. The result is
    out / total, its log-sum-exp top + log(total). Without keys: 0, NOTHING, 0.
    """

    out: Tensor
    top: Tensor
    total: Tensor

    @staticmethod
    def empty(rows: int, num_heads: int, value_size: int, device: torch.device) -> Partial:
        how: Any = {"dtype": torch.float32, "device": device}
        return Partial(
            torch.zeros(rows, num_heads, value_size, **how),
            torch.full((rows, num_heads), NOTHING, **how),
            torch.zeros(rows, num_heads, **how),
        )

    def __getitem__(self, rows: slice | Tensor) -> Partial:
        return Partial(self.out[rows], self.top[rows], self.total[rows])

    def __setitem__(self, rows: slice | Tensor, part: Partial) -> None:
        self.out[rows], self.top[rows], self.total[rows] = part.out, part.top, part.total


def merge(*parts: Partial) -> Partial:
    """Merge partials of the same rows into one (Hydragen, equation 5), added one after the
    other.
    """
    top = functools.reduce(torch.maximum, (part.top for part in parts))
    weights = [torch.exp(part.top - top) for part in parts]
    out, total = parts[0].out * weights[0][..., None], parts[0].total * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        out.addcmul_(part.out, weight[..., None])
        total = total + part.total * weight
    return Partial(out, top, total)


def finish(partial: Partial, sinks: Tensor | None) -> Tensor:
    """Return the output of a row's keys. sinks: [num_heads] one more logit a head, without a
    value.
    """
    total = partial.total
    if sinks is not None:
        total = total + torch.exp(sinks.float() - partial.top)
    return partial.out / torch.where(total == 0, 1.0, total)[..., None]
