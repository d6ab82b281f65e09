"""pass@k and maj@k from the samples of each problem, with intervals over problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

KS = (1, 5, 10, 50, 100)
"""The values of k that papers quote."""

SUBSETS = 200
"""Random subsets of samples behind each maj@k with k between 1 and the number of samples."""

_RESAMPLES = 2000
_CELLS = 1 << 22  # random numbers drawn at once


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The chance that at least one of k samples passes, drawn without replacement.

    1 - C(n - c, k) / C(n, k) for n samples of which c passed, as a product that neither
    overflows nor cancels. Source: Chen et al. 2021, equation 1 and figure 3. Raises ValueError
    unless 0 <= passed <= samples and 1 <= k <= samples.
    """
    if not (0 <= passed <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} of {passed} passed in {samples} samples")
    if samples - passed < k:
        return 1.0
    failed = np.arange(samples - passed + 1, samples + 1)
    return float(1.0 - np.prod(1.0 - k / failed))


def pass_at_k_when_enough(samples: int, passed: int, k: int, enough: int) -> float:
    """Return pass@k of a problem whose samples were drawn until `enough` had passed, or all were.

    The share of the ways to the point where it ended, each as likely as any other, that do not
    begin with k failures: unbiased, where the usual formula is not, for that many successes say
    how long it took. One that ended without enough is a plain draw; one that did ended with a
    success, which leaves the usual formula of all before it. Source: Girshick, Mosteller and
    Savage 1946, theorem 2. Raises ValueError as `pass_at_k`; after enough k may be any.
    """
    if passed < enough:
        return pass_at_k(samples, passed, k)
    if samples - passed < k:
        return 1.0
    return pass_at_k(samples - 1, passed - 1, k)


def majority_at_k(
    answers: Sequence[str | None], right: Mapping[str, bool], ks: Sequence[int], seed: int = 0
) -> list[float]:
    """Return for each k the chance that the vote over k samples, drawn without replacement, is
    right.

    answers: of the samples, by sample index; None does not vote. right: whether each answer is.
    ks: ascending. One sample and all samples are exact; between them it is the mean over `SUBSETS`
    seeded random subsets, which don't depend on the other ks. Ties go to the answer that appears
    first by sample index, and no vote is wrong, as in `sharegen vote`.

    Raises ValueError for a k below 1 or above the number of samples.
    """
    number = len(answers)
    if any(not 1 <= k <= number for k in ks):
        raise ValueError(f"maj@{ks[0]} to maj@{ks[-1]} of {number} samples")
    if not ks:  # of a problem without judged samples
        return []
    codes = {name: code for code, name in enumerate(dict.fromkeys(a for a in answers if a))}
    votes = np.array([codes[a] if a else -1 for a in answers])
    is_right = np.array([*(right[name] for name in codes), False])  # -1, no vote, is wrong
    right_samples = int(is_right[votes].sum())
    if len(codes) <= 1:  # every subset that votes at all votes alike
        return [pass_at_k(number, right_samples, k) for k in ks]
    alone = pass_at_k(number, right_samples, 1)
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(number), (SUBSETS, 1)), axis=1)
    rows = np.arange(SUBSETS)
    counts = np.zeros((SUBSETS, len(codes)), dtype=np.int64)
    first = np.full((SUBSETS, len(codes)), number, dtype=np.int64)
    taken = 0
    chances = []
    for k in ks:
        for column in order[:, taken:k].T:
            voting = votes[column] >= 0
            cell = rows[voting], votes[column[voting]]
            counts[cell] += 1
            first[cell] = np.minimum(first[cell], column[voting])
        taken = k
        # One number orders answers by votes, then by the earlier first sample.
        winner = (counts * (number + 1) - first).argmax(axis=1)
        winner[counts.max(axis=1) == 0] = -1
        chances.append(alone if k == 1 else float(is_right[winner].mean()))
    return chances


def bootstrap_interval(
    values: Sequence[float] | np.ndarray, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean of `values`, one per problem.

    Problems are resampled with replacement, so the interval says how much another choice of
    problems would change the mean; the same seed and values, in whatever order, give the same
    interval. Source: Efron and Tibshirani 1993, section 13.3. Raises ValueError without values.
    """
    data = np.sort(np.asarray(values, dtype=np.float64))
    if not data.size:
        raise ValueError("no values to resample")
    rng = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    rows = max(1, _CELLS // data.size)
    for start in range(0, _RESAMPLES, rows):
        shape = (min(rows, _RESAMPLES - start), data.size)
        means.append(data[rng.integers(data.size, size=shape)].mean(axis=1))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [tail, 1 - tail])
    return float(low), float(high)


def share_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval of the mean of shares, one per problem.

    Where all are 0 or all are 1, which resampling takes for certain, it is the exact one of a
    proportion (Clopper and Pearson 1934). Raises ValueError without values.
    """
    same = len(set(values)) == 1
    if not same or values[0] not in (0, 1):
        return bootstrap_interval(values, level=level)
    far = _exact_end(len(values), level)
    return (0.0, far) if values[0] == 0 else (1 - far, 1.0)


def paired_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval of the mean of differences, one per problem.

    Where no problem differs, as wide as a share of them that could have gone unseen, on either
    side. Raises ValueError without values.
    """
    if any(values) or not values:
        return bootstrap_interval(values, level=level)
    far = _exact_end(len(values), level)
    return -far, far


def _exact_end(number: int, level: float) -> float:
    """The largest share that shows in none of so many problems with a chance of (1 - level) / 2."""
    return float(1 - ((1 - level) / 2) ** (1 / number))


@dataclass(frozen=True)
class PassEstimate:
    """A mean over problems with its 95% interval.

    measure: "pass@k" or "maj@k"; problems: those with at least k samples, over which the mean goes.
    """

    measure: str
    k: int
    problems: int
    mean: float
    low: float
    high: float

    @property
    def name(self) -> str:
        """Return its name, as "pass@5"."""
        return self.measure.replace("k", str(self.k))


def estimate(measure: str, k: int, values: Sequence[float]) -> PassEstimate:
    """The mean of one value per problem."""
    low, high = share_interval(values)
    return PassEstimate(measure, k, len(values), float(np.mean(values)), low, high)


def pass_estimates(
    counts: Sequence[tuple[int, int]], ks: Sequence[int] = KS, enough: int | None = None
) -> list[PassEstimate]:
    """Estimate pass@k for every k that some problem has the samples for.

    counts: (samples, passed) of each problem. A problem with fewer than k samples is left out of
    pass@k, which `Estimate.problems` shows. enough: passed samples with which a problem ended.
    """
    table = []
    for k in ks:
        if enough is None:
            values = [pass_at_k(n, c, k) for n, c in counts if n >= k]
        else:
            values = [
                pass_at_k_when_enough(n, c, k, enough) for n, c in counts if n >= k or c >= enough
            ]
        if values:
            table.append(estimate("pass@k", k, values))
    return table


def majority_estimates(
    votes: Sequence[tuple[Sequence[str | None], Mapping[str, bool]]], ks: Sequence[int] = KS
) -> list[PassEstimate]:
    """Estimate maj@k for every k that some problem has the samples for; see `majority_at_k`."""
    values: dict[int, list[float]] = {k: [] for k in ks}
    for answers, right in votes:
        mine = [k for k in ks if k <= len(answers)]
        for k, chance in zip(mine, majority_at_k(answers, right, mine), strict=True):
            values[k].append(chance)
    return [estimate("maj@k", k, chances) for k, chances in values.items() if chances]
