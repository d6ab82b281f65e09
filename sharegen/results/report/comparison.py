"""Two runs against each other: at the same k, over the problems that both have.

The interval is of the difference problem by problem, which is smaller than two intervals
side by side suggest: both runs find the same problems hard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sharegen.results.report.curves import majority_chances, pass_chances
from sharegen.results.report.measure import Measured
from sharegen.results.report.outcomes import ProblemOutcome
from sharegen.results.scoring.passk import paired_interval


@dataclass(frozen=True)
class Comparison:
    """How much more one run gets right than another, with the 95% interval of that.

    run, against: names. problems: that both have with k samples; of: that each has at all.
    difference, low, high: of shares, `run` minus `against`.
    """

    run: str
    against: str
    measure: str
    k: int
    problems: int
    of: tuple[int, int]
    difference: float
    low: float
    high: float

    def in_words(self) -> str:
        """One line for a terminal or a page."""
        mine, other = self.of
        points = " to ".join(f"{100 * end:+.1f}" for end in (self.low, self.high))
        return (
            f"{self.run} against {self.against}, {self.measure.replace('k', str(self.k))}: "
            f"{100 * self.difference:+.1f} points (95% paired interval {points}) over "
            f"{self.problems:,} common problems of {mine:,} and {other:,}"
        )


def comparisons(runs: Sequence[Measured]) -> list[Comparison]:
    """Every further run against the first one, by one sample and at the largest k of both."""
    return [found for run in runs[1:] for found in _compared(run, runs[0])]


def _compared(run: Measured, first: Measured) -> Iterator[Comparison]:
    largest = min(run.budget, first.budget)
    of = len(run.run.outcomes), len(first.run.outcomes)
    for measure, chances in (("pass@k", pass_chances), ("maj@k", majority_chances)):
        for k in sorted({1, largest} if measure == "pass@k" else {largest}):
            if not largest or (measure == "maj@k" and (run.majority is None or k == 1)):
                continue
            mine, other = (_with_samples(each.run.fixed, k) for each in (run, first))
            common = sorted(mine.keys() & other.keys())
            if not common or (measure == "maj@k" and first.majority is None):
                continue
            values = [chances(mine[i], [k])[0] - chances(other[i], [k])[0] for i in common]
            yield Comparison(
                run.name,
                first.name,
                measure,
                k,
                len(common),
                of,
                float(np.mean(values)),
                *paired_interval(values),
            )


def _with_samples(outcomes: Sequence[ProblemOutcome], k: int) -> Mapping[str, ProblemOutcome]:
    return {outcome.problem_id: outcome for outcome in outcomes if outcome.judged >= k}
