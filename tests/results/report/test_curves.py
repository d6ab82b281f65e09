"""The curves: their ends are known exactly, their middle by enumeration."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import astuple
from pathlib import Path

import pytest

from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile
from sharegen.results.report import terminal
from sharegen.results.report.curves import (
    is_round,
    majority_curve,
    pass_curve,
    sample_budget,
    sample_counts,
)
from sharegen.results.report.measure import measure
from sharegen.results.report.outcomes import ProblemOutcome, Run, Sample, read_run
from sharegen.results.scoring.passk import majority_estimates, pass_estimates
from sharegen.results.scoring.vote import tally
from tests.results.report_journals import sample, write_code, write_lines, write_maths


def outcome(answers: list[str | None], gold: str = "1", problem: str = "p") -> ProblemOutcome:
    records = [Record(problem, i, "h", "", answer=a, gold=gold) for i, a in enumerate(answers)]
    samples = (Sample(record, record.answer, record.answer == gold, None) for record in records)
    return ProblemOutcome(problem, gold, None, tuple(samples))


def voted(answers: list[str | None], gold: str = "1") -> bool:
    records = [Record("p", i, "h", "", answer=a, gold=gold) for i, a in enumerate(answers)]
    return bool(tally(records)[0].correct)


def random_outcomes(problems: int, samples: int, seed: int) -> list[ProblemOutcome]:
    rng = random.Random(seed)
    return [
        outcome([rng.choice(["1", "1", "2", "3", None]) for _ in range(samples)], problem=str(p))
        for p in range(problems)
    ]


def test_the_ends_of_the_curves_are_exact() -> None:
    outcomes = random_outcomes(30, 8, seed=1)
    passed, majority = (
        pass_curve(outcomes, sample_counts(8)),
        majority_curve(outcomes, sample_counts(8)),
    )
    assert majority is not None and passed.ks == majority.ks
    assert passed.mean[0] == pytest.approx(sum(o.right for o in outcomes) / (30 * 8))
    assert passed.mean[-1] == pytest.approx(sum(o.right > 0 for o in outcomes) / 30)
    assert majority.mean[0] == pytest.approx(passed.mean[0], abs=0.02)
    votes = [voted([s.key for s in o.samples]) for o in outcomes]
    assert majority.mean[-1] == pytest.approx(sum(votes) / 30)
    assert list(passed.mean) == sorted(passed.mean)
    for curve in (passed, majority):
        for mean, low, high in zip(curve.mean, curve.low, curve.high, strict=True):
            assert 0 <= low <= mean <= high <= 1


def test_majority_agrees_with_all_subsets() -> None:
    """Against the vote over every subset, for problems of every kind."""
    for seed in range(12):
        (problem,) = random_outcomes(1, 7, seed)
        answers = [s.key for s in problem.samples]
        curve = majority_curve([problem], sample_counts(7))
        if curve is None:
            assert not any(answers)
            continue
        for k, mean in zip(curve.ks, curve.mean, strict=True):
            subsets = [list(c) for c in itertools.combinations(answers, k)]
            expected = sum(map(voted, subsets)) / len(subsets)
            # 200 subsets: four standard errors
            assert abs(mean - expected) <= 4 * math.sqrt(expected * (1 - expected) / 200) + 1e-9


def test_curves_are_the_same_every_time() -> None:
    outcomes = random_outcomes(10, 9, seed=3)
    assert majority_curve(outcomes, sample_counts(9)) == majority_curve(outcomes, sample_counts(9))
    assert pass_curve(outcomes, sample_counts(9)) == pass_curve(outcomes, sample_counts(9))


def test_a_curve_is_over_the_problems_that_have_k_samples(tmp_path: Path) -> None:
    outcomes = [outcome(["1"] * 4), outcome(["2"] * 4, problem="q"), outcome(["1"], problem="r")]
    run = Run("run", tmp_path, tuple(outcomes), 0, RunFile())
    measured = measure(run)
    assert (measured.budget, measured.short) == (4, 1)
    assert measured.passed is not None and measured.passed.ks == (1, 2, 3, 4)
    assert measured.passed.mean == pytest.approx((2 / 3, 0.5, 0.5, 0.5))
    assert "1 of 3 problems have fewer than 4 samples" in next(iter(measured.notes))


def test_curves_are_the_numbers_of_score() -> None:
    """The same means and the same intervals, whatever the order and the number of samples."""
    rng = random.Random(5)
    outcomes = [
        outcome([rng.choice(["1", "2", "3", None]) for _ in range(size)], problem=str(size))
        for size in (3, 12, 10, 7, 11, 10)
    ]
    votes = [tally(sample.record for sample in o.samples)[0] for o in reversed(outcomes)]
    found = {
        f"{measure}@{k}": (mean, low, high)
        for measure, curve in (
            ("pass", pass_curve(outcomes, sample_counts(10))),
            ("maj", majority_curve(outcomes, sample_counts(10))),
        )
        if curve is not None
        for k, mean, low, high in zip(*astuple(curve), strict=True)
    }
    passed = pass_estimates([(vote.samples, vote.right_samples) for vote in votes])
    majority = majority_estimates([(vote.answers, vote.right) for vote in votes])
    assert [row.name for row in passed + majority] == [
        *("pass@1", "pass@5", "pass@10", "maj@1", "maj@5", "maj@10")
    ]
    for row in passed + majority:
        assert found[row.name] == pytest.approx((row.mean, row.low, row.high))


@pytest.mark.parametrize(
    ("sizes", "budget"), [([], 0), ([3], 3), ([5, 3], 5), ([9, 5, 3], 5), ([1, 1, 1, 40], 1)]
)
def test_budget_is_what_half_of_the_problems_reach(sizes: list[int], budget: int) -> None:
    assert sample_budget([outcome(["1"] * size) for size in sizes]) == budget


def test_counts_hold_the_round_numbers() -> None:
    assert sample_counts(0) == [] and sample_counts(1) == [1]
    for budget in (2, 20, 137, 1000):
        ks = sample_counts(budget)
        assert ks[0] == 1 and ks[-1] == budget and ks == sorted(set(ks)) and len(ks) < 40
        assert {k for k in range(1, budget) if is_round(k)} <= set(ks)
    assert [k for k in range(1, 120) if is_round(k)] == [1, 2, 5, 10, 20, 50, 100]


def test_the_terminal_shows_curves_and_numbers(tmp_path: Path) -> None:
    runs = [measure(read_run(write_maths(tmp_path / "m.jsonl", samples=20), "m"))]
    lines = terminal.chart(runs).splitlines()
    text = "\n".join(lines)
    assert text.isascii() and max(map(len, lines)) <= 100
    assert "*" in lines[0] + lines[1] + lines[2] and "samples k" in text
    assert [line.split()[0] for line in lines if line[:5].strip().isdigit()] == [
        "1", "2", "5", "10", "20",
    ]  # fmt: skip
    assert "maj@k" in text and "mean of 200 random subsets" in text
    assert f"{runs[0].passed.mean[-1]:.1%}" in text  # type: ignore[union-attr]


def test_the_terminal_compares_runs(tmp_path: Path) -> None:
    paths = [write_code(tmp_path / f"{n}.jsonl", samples=n) for n in (3, 12)]
    text = terminal.chart([measure(read_run(path, path.stem)) for path in paths])
    assert "3 pass@k" in text and "12 pass@k" in text and "maj@k" not in text


def test_one_sample_is_a_number_and_no_curve(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "one.jsonl", [sample("p", 0, answer="1", gold="1")])
    text = terminal.chart([measure(read_run(path, "one"))])
    assert "100.0% [  2.5, 100.0]" in text and "|" not in text


def test_without_verdicts_there_is_nothing_to_draw(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "free.jsonl", [sample("p", 0)])
    assert terminal.chart([measure(read_run(path, "free"))]) == ""
