"""pass@k and maj@k against the number of samples, with intervals over problems.

At each k they go over the problems that have k samples, by the estimators of `sharegen score`, so
that both say the same of the same file. They end at the `budget` that half of all problems reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sharegen.results.passk import (
    bootstrap_interval,
    majority_at_k,
    pass_at_k,
    pass_at_k_when_enough,
)
from sharegen.results.report.outcomes import Outcome

_POINTS = 20


@dataclass(frozen=True)
class Curve:
    """One measure at each k: its mean over problems and the 95% interval of that mean."""

    ks: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def sample_budget(outcomes: Sequence[Outcome]) -> int:
    """The most samples that at least half of the problems with verdicts have; 0 without any."""
    sizes = sorted((outcome.judged for outcome in outcomes if outcome.judged), reverse=True)
    return sizes[(len(sizes) - 1) // 2] if sizes else 0


def sample_counts(budget: int) -> list[int]:
    """From 1 to `budget`: evenly spaced on a logarithmic axis, with all round numbers."""
    if not budget:
        return []
    even = {round(k) for k in np.geomspace(1, budget, _POINTS)}
    return sorted(even | {k for k in range(1, budget) if is_round(k)})


def is_round(k: int) -> bool:
    """1, 2, 5, 10, 20, 50, ...: the values of k that people quote."""
    return str(k).rstrip("0") in ("1", "2", "5")


def pass_curve(outcomes: Sequence[Outcome], budget: int, enough: int | None = None) -> Curve:
    """pass@k by the unbiased estimator (Chen et al. 2021, equation 1).

    enough: right samples with which a problem ended; then by the one for those.
    """

    @cache
    def chance(judged: int, right: int, k: int) -> float:
        if enough is None:
            return pass_at_k(judged, right, k)
        return pass_at_k_when_enough(judged, right, k, enough)

    def ks(outcome: Outcome) -> list[int]:
        ended = enough is not None and outcome.right >= enough
        return sample_counts(budget) if ended else _within(outcome, budget)

    return _over_problems(
        sample_counts(budget), ([chance(o.judged, o.right, k) for k in ks(o)] for o in outcomes)
    )


def majority_curve(outcomes: Sequence[Outcome], budget: int) -> Curve | None:
    """maj@k: how often the vote over k samples is right; None where samples have no answers."""
    if not any(outcome.votes for outcome in outcomes):
        return None
    return _over_problems(
        sample_counts(budget),
        (_majority(outcome, _within(outcome, budget)) for outcome in outcomes),
    )


def _within(outcome: Outcome, budget: int) -> list[int]:
    """The ks that a problem has the samples for."""
    return [k for k in sample_counts(budget) if k <= outcome.judged]


def _majority(outcome: Outcome, ks: Sequence[int]) -> list[float]:
    judged = [sample for sample in outcome.samples if sample.right is not None]
    right: dict[str, bool] = {}
    for sample in judged:
        if sample.key is not None:
            right.setdefault(sample.key, bool(sample.right))
    return majority_at_k([sample.key for sample in judged], right, ks)


def _over_problems(ks: Sequence[int], chances: Iterable[Sequence[float]]) -> Curve:
    """chances: of each problem at as many of the first ks as it has the samples for."""
    table = list(chances)
    columns = [[row[i] for row in table if i < len(row)] for i in range(len(ks))]
    intervals = [bootstrap_interval(column) for column in columns]
    return Curve(
        tuple(ks),
        tuple(float(np.mean(column)) for column in columns),
        tuple(low for low, _ in intervals),
        tuple(high for _, high in intervals),
    )
