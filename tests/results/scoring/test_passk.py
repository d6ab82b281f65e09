"""pass@k against its definition, maj@k by enumeration, intervals that cover."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.common.stop_rule import StopRule
from sharegen.results.scoring.passk import (
    bootstrap_interval,
    majority_at_k,
    majority_estimates,
    paired_interval,
    pass_at_k,
    pass_at_k_when_enough,
    pass_estimates,
    share_interval,
)
from sharegen.results.stopping.stopped import Stopped


@given(st.integers(1, 400), st.data())
def test_pass_at_k_is_the_published_estimator(samples: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, samples))
    k = data.draw(st.integers(1, samples))
    exact = 1 - math.comb(samples - passed, k) / math.comb(samples, k)
    assert pass_at_k(samples, passed, k) == pytest.approx(exact, abs=1e-12)


def test_pass_at_k_agrees_with_the_papers_code_on_random_tables() -> None:
    def published(n: int, c: int, k: int) -> float:  # Chen et al. 2021, figure 3, in its own form
        return 1.0 if n - c < k else 1.0 - float(np.prod(1.0 - k / np.arange(n - c + 1, n + 1)))

    rng = np.random.default_rng(0)
    counts = [(int(n), int(rng.integers(n + 1))) for n in rng.integers(100, 300, size=50)]
    for row in pass_estimates(counts):
        k = int(row.name.removeprefix("pass@"))
        assert row.mean == pytest.approx(np.mean([published(n, c, k) for n, c in counts]))
        assert row.problems == 50 and row.low <= row.mean <= row.high


def test_pass_at_k_is_the_mean_over_all_subsets() -> None:
    verdicts = [True, False, False, True, False]
    for k in range(1, 6):
        subsets = list(itertools.combinations(verdicts, k))
        expected = sum(map(any, subsets)) / len(subsets)
        assert pass_at_k(5, 2, k) == pytest.approx(expected)


def test_pass_at_k_neither_overflows_nor_cancels() -> None:
    assert pass_at_k(10**6, 1, 10) == pytest.approx(1e-5)
    assert pass_at_k(10**6, 0, 10) == 0.0
    assert pass_at_k(10**6, 10**6 - 9, 10) == 1.0


@pytest.mark.parametrize("arguments", [(5, 6, 1), (5, -1, 1), (5, 1, 0), (5, 1, 6)])
def test_impossible_counts_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(*arguments)


def test_only_ks_up_to_the_samples_there_are() -> None:
    table = pass_estimates([(10, 3), (10, 0), (5, 5)])
    assert [(row.name, row.problems) for row in table] == [
        ("pass@1", 3),
        ("pass@5", 3),
        ("pass@10", 2),
    ]
    assert pass_estimates([]) == []


ANSWERS = ["a", "b", None, "b", "a", "c", "a"]
RIGHT = {"a": False, "b": True, "c": False}


def test_majority_over_all_samples_is_the_vote() -> None:
    assert majority_at_k(ANSWERS, RIGHT, [len(ANSWERS)]) == [0.0]
    assert majority_at_k(["b", "a", "a", "b"], RIGHT, [4]) == [1.0]  # the tie goes to the first
    assert majority_at_k([None, None], RIGHT, [1, 2]) == [0.0, 0.0]


def test_majority_of_one_is_the_share_of_right_samples() -> None:
    assert majority_at_k(ANSWERS, RIGHT, [1]) == [pass_at_k(7, 2, 1)]
    assert majority_at_k(["b", None, "b"], RIGHT, [1, 2]) == [pass_at_k(3, 2, 1), 1.0]


def test_majority_at_k_hangs_on_no_other_k() -> None:
    together = majority_at_k(ANSWERS, RIGHT, [1, 2, 3, 5, 7])
    assert together == [majority_at_k(ANSWERS, RIGHT, [k])[0] for k in (1, 2, 3, 5, 7)]
    with pytest.raises(ValueError, match="maj@"):
        majority_at_k(ANSWERS, RIGHT, [8])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_majority_at_k_approaches_the_enumeration(k: int) -> None:
    def is_right(subset: tuple[int, ...]) -> bool:
        counts = Counter(ANSWERS[i] for i in subset if ANSWERS[i] is not None)
        return bool(counts) and RIGHT[counts.most_common(1)[0][0]]

    subsets = list(itertools.combinations(range(len(ANSWERS)), k))
    exact = sum(map(is_right, subsets)) / len(subsets)
    mean = np.mean([majority_at_k(ANSWERS, RIGHT, [k], seed) for seed in range(10)])
    assert mean == pytest.approx(exact, abs=0.06)


def test_majority_table_has_the_same_ks() -> None:
    table = majority_estimates([(ANSWERS, RIGHT), (["b"] * 5, RIGHT)])
    assert [(row.name, row.problems) for row in table] == [("maj@1", 2), ("maj@5", 2)]


def test_interval_is_repeatable_and_holds_the_mean() -> None:
    values = [0.0, 0.25, 0.5, 1.0, 1.0]
    assert bootstrap_interval(values, seed=3) == bootstrap_interval(values[::-1], seed=3)
    low, high = bootstrap_interval(values)
    assert 0 <= low < np.mean(values) < high <= 1
    assert bootstrap_interval([0.5] * 4) == (0.5, 0.5)
    with pytest.raises(ValueError, match="no values"):
        bootstrap_interval([])


def test_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        low, high = bootstrap_interval(rng.beta(2, 3, size=60), seed=trial)
        covered += low <= 0.4 <= high
    assert 0.89 <= covered / 200 <= 0.99


@pytest.mark.parametrize(("samples", "passed"), [(5, 0), (5, 1), (6, 2), (6, 4), (6, 6)])
@pytest.mark.parametrize("enough", [1, 2, 3])
def test_stopped_with_enough_right_ones_is_unbiased(samples: int, passed: int, enough: int) -> None:
    """By enumeration: over all orders of a full draw, the mean is the full draw's estimate."""
    orders = set(itertools.permutations([True] * passed + [False] * (samples - passed)))
    for k in range(1, samples + 1):
        estimates = []
        for order in orders:
            drawn = next(n for n in range(1, samples + 1)
                         if sum(order[:n]) == enough or n == samples)  # fmt: skip
            estimates.append(pass_at_k_when_enough(drawn, sum(order[:drawn]), k, enough))
        assert np.mean(estimates) == pytest.approx(pass_at_k(samples, passed, k))


@pytest.mark.parametrize("rule", ["decided", "confident=0.8", "window=2", "right=2"])
def test_the_samples_that_every_problem_has_are_no_biased_choice(rule: str) -> None:
    """By enumeration: pass@k and maj@k of these, over all orders of a full draw, are the full's."""
    full = ["a", "a", "a", "b", "b", None]
    right = {"a": True, "b": False}
    stopped = Stopped(StopRule.parse(rule), len(full))
    orders = sorted(set(itertools.permutations(full)), key=str)
    assert 2 <= stopped.first < len(full)
    for k in range(1, stopped.first + 1):
        of_first, of_all, votes, all_votes = [], [], [], []
        for order in orders:
            first = order[: stopped.first]
            of_first.append(pass_at_k(len(first), first.count("a"), k))
            of_all.append(pass_at_k(len(order), order.count("a"), k))
            votes.append(_vote_of(first, right, k))
            all_votes.append(_vote_of(order, right, k))
        assert np.mean(of_first) == pytest.approx(np.mean(of_all))
        assert np.mean(votes) == pytest.approx(np.mean(all_votes))


def _vote_of(answers: tuple[str | None, ...], right: dict[str, bool], k: int) -> float:
    """maj@k over all subsets, of which `majority_at_k` takes some at random."""
    wins = []
    for subset in itertools.combinations(answers, k):
        [winner] = [*Counter(filter(None, subset)).most_common(1)] or [("", 0)]
        wins.append(right.get(winner[0], False))
    return float(np.mean(wins))


def test_no_interval_is_certain_where_all_are_right_or_none_is() -> None:
    """The exact interval of a proportion, at its ends: (alpha / 2) ** (1 / n)."""
    assert share_interval([1.0] * 20) == (pytest.approx(0.025 ** (1 / 20)), 1.0)
    assert share_interval([0.0] * 20) == (0.0, pytest.approx(1 - 0.025 ** (1 / 20)))
    assert share_interval([0.0, 1.0, 1.0]) == bootstrap_interval([0.0, 1.0, 1.0])
    assert paired_interval([0.0] * 3) == (
        pytest.approx(0.025 ** (1 / 3) - 1),
        pytest.approx(0.7076, abs=1e-4),
    )
    assert paired_interval([0.5, -0.5, 1.0]) == bootstrap_interval([0.5, -0.5, 1.0])
    [estimate] = pass_estimates([(4, 4)] * 10, [2])
    assert estimate.name == "pass@2" and 0.6 < estimate.low < 0.7 and estimate.high == 1


def test_no_samples_have_no_majority() -> None:
    assert majority_at_k([], {}, []) == []
