"""How long samples turn out, from those that are finished and those that still run.

With continuous batching the short samples finish first, so that the finished ones alone say too
little, and say it the more the fewer they are. Those that run say that they are longer than their
age: this is the estimate of survival under censoring (Kaplan and Meier, 1958), with a log-normal
distribution as a weak prior (Hjort, 1990), which decides where no sample has been yet.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_GROWTH = 1.1  # of a bin over the one before
_SIGMAS = (0.15, 0.3, 0.5, 0.8)  # of the prior
_USUAL, _FAR = 0.5, 2.0  # the likeliest of them, and how much less likely others are
_LEAST = 1e-300
_WEIGHT = 2.0  # samples that the prior is worth
_UNSEEN = 0.5  # ends that are assumed where none was seen
_BEYOND = 64  # times the greatest age that anything is known of, where there is no limit
_LAST = 0.6  # samples of many, expected to run, when the last of them is about to end
_HALVINGS = 16

_Seen = tuple[float, float, float, float]
"""A bin's edges, and how many ended there and run there."""


class Lifetimes:
    """The survival function of a job's samples, by their tokens.

    finished: how many samples have so many tokens. ages: tokens so far of each that runs. longest:
    tokens that a sample has at most; None without a limit.

    Ages go by bins: how many samples are in each.
    """

    def __init__(
        self, finished: Mapping[int, int], ages: Iterable[float], longest: int | None
    ) -> None:
        ages = list(ages)
        known = max([1.0, *ages, *finished])
        self._edges = _edges(float(longest) if longest is not None else known * _BEYOND)
        bins = len(self._edges) - 1
        ended, running = [0.0] * bins, [0.0] * bins
        for tokens, count in finished.items():
            ended[self._bin(max(0, tokens - 1))] += count
        for age in ages:
            running[self._bin(age)] += 1
        self.ages = running
        """How many of those that run are in each bin."""
        self._survival = _survival(self._edges, ended, running)
        self._beyond = [0.0] * (bins + 1)  # tokens still to come at an edge, times survival there
        for at in range(bins - 1, -1, -1):
            width = self._edges[at + 1] - self._edges[at]
            mean = (self._survival[at] + self._survival[at + 1]) / 2
            self._beyond[at] = self._beyond[at + 1] + self._survival[at] + (width - 1) * mean

    @property
    def mean(self) -> float:
        """Return the tokens of a sample that has not begun."""
        return self._beyond[0]

    def settled_ages(self, rows: float) -> list[float]:
        """Return the ages of so many rows that were filled again and again."""
        return [
            rows * (here - further) / self.mean
            for here, further in zip(self._beyond, self._beyond[1:], strict=False)
        ]

    def to_come(self, ages: list[float]) -> float:
        """Return the tokens that samples of these ages still draw."""
        return sum(n * self._beyond[at] / self._survival[at] for at, n in self._groups(ages))

    def until_last(self, ages: list[float]) -> float:
        """Return the tokens that the last of them to end still draws."""
        groups = self._groups(ages)
        few = min(_LAST, 0.5 * sum(count for _, count in groups))
        low, high = 0.0, self._edges[-1]
        while high - low > 0.01 * high and high > 0.5:
            middle = (low + high) / 2
            left = sum(
                count * self._at(self._edges[at] + middle) / self._survival[at]
                for at, count in groups
            )
            low, high = (middle, high) if left > few else (low, middle)
        return high

    def _groups(self, ages: list[float]) -> list[tuple[int, float]]:
        return [(at, count) for at, count in enumerate(ages) if count and self._survival[at]]

    def _bin(self, tokens: float) -> int:
        return min(bisect_right(self._edges, tokens), len(self._edges) - 1) - 1

    def _at(self, tokens: float) -> float:
        """The share that survives a point between two edges."""
        if tokens >= self._edges[-1]:
            return 0.0
        at = self._bin(tokens)
        part = (tokens - self._edges[at]) / (self._edges[at + 1] - self._edges[at])
        return self._survival[at] + part * (self._survival[at + 1] - self._survival[at])


def _edges(most: float) -> list[float]:
    """Edges from 0 to `most`: one token apart at first, then at growing distances."""
    edges = [0.0]
    while edges[-1] < most:
        edges.append(min(most, max(edges[-1] + 1, edges[-1] * _GROWTH)))
    return edges


def _survival(edges: list[float], ended: list[float], running: list[float]) -> list[float]:
    """The share that survives each edge; it is 0 at the last."""
    prior = _LogNormal.fitted(edges, ended, running)
    survival = [1.0]
    at_risk = sum(ended) + sum(running)
    for at in range(len(ended) - 1):
        expected = -math.expm1(prior.hazard(edges[at]) - prior.hazard(edges[at + 1]))
        exposed = at_risk - running[at] / 2
        hazard = (ended[at] + _WEIGHT * expected) / (exposed + _WEIGHT)
        survival.append(survival[-1] * (1 - hazard))
        at_risk -= ended[at] + running[at]
    return [*survival, 0.0]


@dataclass(frozen=True)
class _LogNormal:
    """Lengths whose logarithms are normal. sigma: their standard deviation."""

    median: float
    sigma: float

    @classmethod
    def fitted(cls, edges: list[float], ended: list[float], running: list[float]) -> _LogNormal:
        """The likeliest of a few, each with the median by which as many ended as have."""
        seen = [
            (low, high, ends, runs)
            for low, high, ends, runs in zip(edges, edges[1:], ended, running, strict=False)
            if ends or runs
        ]
        return max(
            (cls(_median(sigma, seen), sigma) for sigma in _SIGMAS),
            key=lambda prior: prior.likelihood(seen) - _FAR * abs(math.log(prior.sigma / _USUAL)),
        )

    def hazard(self, tokens: float) -> float:
        """The cumulative hazard at so many tokens."""
        if tokens <= 0:
            return 0.0
        away = math.log(tokens / self.median) / self.sigma
        return -math.log(max(_LEAST, math.erfc(away / math.sqrt(2)) / 2))

    def likelihood(self, seen: list[_Seen]) -> float:
        """The logarithm of that of what was seen."""
        total = 0.0
        for low, high, ends, runs in seen:
            before, after = self.hazard(low), self.hazard(high)
            total -= (ends + runs) * before
            if ends:
                total += ends * math.log(max(_LEAST, -math.expm1(before - after)))
        return total


def _median(sigma: float, seen: list[_Seen]) -> float:
    wanted = max(_UNSEEN, sum(ends for _, _, ends, _ in seen))
    low, high = 0.5, _BEYOND * max((high for _, high, _, _ in seen), default=1.0)
    for _ in range(_HALVINGS):
        middle = _LogNormal(math.sqrt(low * high), sigma)
        expected = sum((ends + runs) * middle.hazard(at) for _, at, ends, runs in seen)
        low, high = (middle.median, high) if expected > wanted else (low, middle.median)
    return high
