"""pass@k and maj@k against the number of samples, with intervals over problems.

At each k they go over the problems that have k samples, by the estimators of `sharegen score`, so
that both say the same of the same file. They end at the `budget` that half of all problems reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from sharegen.results.report.outcomes import ProblemOutcome
from sharegen.results.scoring.passk import (
    majority_at_k,
    pass_at_k,
    pass_at_k_when_enough,
    share_interval,
)

_POINTS = 20


@dataclass(frozen=True)
class Curve:
    """One measure at each k: its mean over problems and the 95% interval of that mean."""

    ks: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def sample_budget(outcomes: Sequence[ProblemOutcome]) -> int:
    """The most samples that at least half of the problems with verdicts have; 0 without any."""
    sizes = sorted((outcome.judged for outcome in outcomes if outcome.judged), reverse=True)
    return sizes[(len(sizes) - 1) // 2] if sizes else 0


def sample_counts(budget: int, also: Iterable[int] = ()) -> list[int]:
    """Choose numbers from 1 to `budget`: evenly spaced on a logarithmic axis, with all round
    numbers.

    also: more of them, such as those at which other runs end.
    """
    if not budget:
        return []
    even = {round(k) for k in np.geomspace(1, budget, _POINTS)}
    even |= {k for k in also if 1 <= k <= budget}
    return sorted(even | {k for k in range(1, budget) if is_round(k)})


def is_round(k: int) -> bool:
    """Return whether it is one of 1, 2, 5, 10, 20, 50, ...: the values of k that people quote."""
    return str(k).rstrip("0") in ("1", "2", "5")


def pass_curve(
    outcomes: Sequence[ProblemOutcome], ks: Sequence[int], enough: int | None = None
) -> Curve:
    """Compute pass@k by the unbiased estimator (Chen et al. 2021, equation 1).

    enough: right samples with which a problem ended; then by the one for those.
    """

    @cache
    def chance(judged: int, right: int, k: int) -> float:
        if enough is None:
            return pass_at_k(judged, right, k)
        return pass_at_k_when_enough(judged, right, k, enough)

    def of(outcome: ProblemOutcome) -> Sequence[int]:
        ended = enough is not None and outcome.right >= enough
        return ks if ended else _within(outcome, ks)

    return _over_problems(ks, ([chance(o.judged, o.right, k) for k in of(o)] for o in outcomes))


def majority_curve(outcomes: Sequence[ProblemOutcome], ks: Sequence[int]) -> Curve | None:
    """Compute maj@k: how often the vote over k samples is right; None where samples have no
    answers.
    """
    if not any(outcome.votes for outcome in outcomes):
        return None
    return _over_problems(
        ks,
        (majority_chances(outcome, _within(outcome, ks)) for outcome in outcomes),
    )


def _within(outcome: ProblemOutcome, ks: Sequence[int]) -> list[int]:
    """The ks that a problem has the samples for."""
    return [k for k in ks if k <= outcome.judged]


def pass_chances(outcome: ProblemOutcome, ks: Sequence[int]) -> list[float]:
    """Return pass@k of one problem at each k."""
    return [pass_at_k(outcome.judged, outcome.right, k) for k in ks]


def majority_chances(outcome: ProblemOutcome, ks: Sequence[int]) -> list[float]:
    """Return maj@k of one problem at each k."""
    judged = [sample for sample in outcome.samples if sample.right is not None]
    right: dict[str, bool] = {}
    for sample in judged:
        if sample.key is not None:
            right.setdefault(sample.key, bool(sample.right))
    return majority_at_k([sample.key for sample in judged], right, ks)


def _over_problems(ks: Sequence[int], chances: Iterable[Sequence[float]]) -> Curve:
    """Average over problems. chances: of each problem at as many of the first ks as it has the
    samples for.
    """
    table = list(chances)
    columns = [[row[i] for row in table if i < len(row)] for i in range(len(ks))]
    intervals = [share_interval(column) for column in columns]
    return Curve(
        tuple(ks),
        tuple(float(np.mean(column)) for column in columns),
        tuple(low for low, _ in intervals),
        tuple(high for _, high in intervals),
    )
