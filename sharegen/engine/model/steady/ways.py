"""The ways in which a linear layer may be computed, and which of them serves a number of rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import linear, pad


@dataclass(frozen=True)
class ProductShape:
    """A linear layer of `size` inputs and `width` outputs, on one device.

    in_blocks: whether its weight is FP8 by blocks; dtype is then its inputs'.
    """

    size: int
    width: int
    dtype: torch.dtype
    has_bias: bool
    device: torch.device
    in_blocks: bool = False

    def __str__(self) -> str:
        kind = "FP8 by blocks" if self.in_blocks else str(self.dtype).removeprefix("torch.")
        return f"{self.size} -> {self.width} in {kind}{' with a bias' if self.has_bias else ''}"


Multiply = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Returns x @ weight.T + bias [T, N]; x: [T, K], weight: [N, K], bias: [N] or None."""


@dataclass(frozen=True)
class Way:
    """One way to multiply.

    Args:
        multiply: what does it.
        rows: how many rows it is done with at a time, of which the last may be zeros; None for as
            they come.
    """

    multiply: Multiply = linear
    rows: int | None = None

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        if self.rows is None or self.rows == len(x):
            return self.multiply(x, weight, bias)
        parts = pad(x, (0, 0, 0, -len(x) % self.rows)).split(self.rows)
        done = [self.multiply(part, weight, bias) for part in parts]
        return (done[0] if len(done) == 1 else torch.cat(done))[: len(x)]


@dataclass(frozen=True)
class Ways:
    """Which way serves how many rows.

    Args:
        by_rows: by the numbers of rows that were tried, in rising order.
        differing: those for which no way gave the bits of the others.
    """

    by_rows: dict[int, Way]
    differing: tuple[int, ...] = ()
    _sizes: Sequence[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", tuple(self.by_rows))

    def multiply(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        """Multiply as for the next number of rows that was tried; more than these part by part."""
        most = self._sizes[-1]
        if len(x) > most:
            return torch.cat([self.multiply(part, weight, bias) for part in x.split(most)])
        return self.by_rows[self._tried_for(len(x))](x, weight, bias)

    def rows_together(self, count: int) -> int:
        """How many of so many rows are multiplied at a time, of which the last may be zeros."""
        size = self._tried_for(min(count, self._sizes[-1]))
        return self.by_rows[size].rows or size

    def _tried_for(self, count: int) -> int:
        return self._sizes[bisect_left(self._sizes, count)]
