"""pass@k and maj@k against the number of samples, with intervals over problems.

Both curves are taken over the same problems at every k, so that a step along the curve is never a
change of problems: those with at least `budget` samples, where half of all problems reach `budget`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sharegen.results.passk import bootstrap_interval, pass_at_k
from sharegen.results.report.outcomes import Outcome

SUBSETS = 200
"""Random subsets of samples behind each maj@k with k below the number of samples."""

_SEED = 0
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


def pass_curve(outcomes: Sequence[Outcome], budget: int) -> Curve:
    """pass@k by the unbiased estimator (Chen et al. 2021, equation 1)."""
    ks = sample_counts(budget)
    estimate = lru_cache(maxsize=None)(pass_at_k)
    table = [
        [estimate(outcome.judged, outcome.right, k) for k in ks]
        for outcome in outcomes
        if outcome.judged >= budget
    ]
    return _over_problems(ks, table)


def majority_curve(outcomes: Sequence[Outcome], budget: int) -> Curve | None:
    """maj@k: how often the vote over k samples is right; None where samples have no answers.

    For k below the number of samples it is the mean over `SUBSETS` seeded random subsets, drawn
    without replacement; ties go to the answer that appears first by sample index, as in `vote`.
    """
    if not any(outcome.votes for outcome in outcomes):
        return None
    ks = sample_counts(budget)
    rng = np.random.default_rng(_SEED)
    table = [_majority(outcome, ks, rng) for outcome in outcomes if outcome.judged >= budget]
    return _over_problems(ks, table)


def _majority(outcome: Outcome, ks: Sequence[int], rng: np.random.Generator) -> list[float]:
    judged = [sample for sample in outcome.samples if sample.right is not None]
    keys: dict[str, int] = {}
    right = []
    codes = np.full(len(judged), -1)
    for position, sample in enumerate(judged):
        if sample.key is not None:
            if sample.key not in keys:
                keys[sample.key] = len(keys)
                right.append(bool(sample.right))
            codes[position] = keys[sample.key]
    if len(keys) <= 1:  # every subset that votes at all votes alike
        chances = [pass_at_k(len(judged), int((codes == 0).sum()), k) for k in ks]
        return [chance if right and right[0] else 0.0 for chance in chances]
    right.append(False)  # where nothing votes, code -1 looks up this
    is_right = np.array(right)
    order = rng.permuted(np.tile(np.arange(len(judged)), (SUBSETS, 1)), axis=1)
    rows = np.arange(SUBSETS)
    counts = np.zeros((SUBSETS, len(keys)), dtype=np.int64)
    first = np.full((SUBSETS, len(keys)), len(judged), dtype=np.int64)
    taken = 0
    scores = []
    for k in ks:
        for column in order[:, taken:k].T:
            voting = codes[column] >= 0
            cell = rows[voting], codes[column[voting]]
            counts[cell] += 1
            first[cell] = np.minimum(first[cell], column[voting])
        taken = k
        # One number orders answers by votes, then by the earlier first sample.
        winner = (counts * (len(judged) + 1) - first).argmax(axis=1)
        winner[counts.max(axis=1) == 0] = -1
        scores.append(float(is_right[winner].mean()))
    return scores


def _over_problems(ks: Sequence[int], table: Sequence[Sequence[float]]) -> Curve:
    values = np.array(table)
    intervals = [bootstrap_interval(column, seed=_SEED) for column in values.T]
    return Curve(
        tuple(ks),
        tuple(float(mean) for mean in values.mean(axis=0)),
        tuple(float(low) for low, _ in intervals),
        tuple(float(high) for _, high in intervals),
    )
