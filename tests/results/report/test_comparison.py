"""Two runs compared: at the k and over the problems that both have."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.results.report import terminal
from sharegen.results.report.comparison import comparisons
from sharegen.results.report.measure import Measured, measure_all
from sharegen.results.report.objects import as_object
from sharegen.results.report.outcomes import read_run
from tests.results.report_journals import sample, write_lines, write_maths, write_run_file


def runs(folder: Path, *sizes: tuple[int, int, int]) -> list[Measured]:
    """Runs of so many problems, samples and right ones of these (the first; gold answer is 1)."""
    read = []
    for number, (problems, samples, right) in enumerate(sizes):
        lines = [
            sample(f"p{p}", s, answer="1" if s < right else "2", gold="1")
            for p in range(problems)
            for s in range(samples)
        ]
        path = write_lines(folder / f"run{number}.jsonl", lines)
        read.append(read_run(path, f"run{number}"))
    return measure_all(read)


def test_they_meet_at_the_k_and_problems_of_both(tmp_path: Path) -> None:
    many, few = runs(tmp_path, (30, 20, 5), (12, 8, 4))
    assert 8 in many.passed.ks and 20 in many.passed.ks  # type: ignore[union-attr]
    found = comparisons([many, few])
    assert [(each.measure, each.k) for each in found] == [
        ("pass@k", 1),
        ("pass@k", 8),
        ("maj@k", 8),
    ]
    assert all(each.problems == 12 and each.of == (12, 30) for each in found)
    assert found[0].difference == pytest.approx(4 / 8 - 5 / 20)
    assert found[0].low == found[0].high == pytest.approx(0.25)  # the same of every problem
    assert found[0].in_words() == (
        "run1 against run0, pass@1: +25.0 points (95% paired interval +25.0 to +25.0) over 12 "
        "common problems of 12 and 30"
    )
    text = terminal.chart([many, few])
    assert found[1].in_words() in " ".join(text.split())
    [line] = [line for line in text.splitlines() if line.split()[:1] == ["8"]]
    assert line.count("%") == line.count("[") == 4  # two runs, two measures
    assert max(map(len, text.splitlines())) <= 100


def test_a_run_against_itself_differs_by_nothing_and_not_for_certain(tmp_path: Path) -> None:
    one, same = runs(tmp_path, (10, 4, 2), (10, 4, 2))
    for found in comparisons([one, same]):
        assert found.difference == 0 and found.low == -found.high and 0.2 < found.high < 0.4


def test_what_has_nothing_in_common(tmp_path: Path) -> None:
    [one] = runs(tmp_path, (3, 4, 2))
    path = write_lines(tmp_path / "other.jsonl", [sample("q", 0, answer="1", gold="1")])
    [other] = measure_all([read_run(path, "other")])
    assert comparisons([one, other]) == [] and comparisons([one]) == []
    assert as_object([one, other])["comparisons"] == []


def test_two_runs_fit_100_columns_and_say_what_differs(tmp_path: Path) -> None:
    both = []
    for name, temperature, model in (("first" * 30, 1.0, "a/model"), ("second" * 30, 0.7, "./b")):
        path = write_maths(tmp_path / f"{name}.jsonl", samples=20)
        write_run_file(
            path,
            configuration={"sampling": {"temperature": temperature, "top_k": 0}},
            extent={"model": model, "prompt": f"{name} {{{{ question }}}}"},
            fingerprints={"model": model, "dataset": "same"},
            environment={"date": name},
        )
        both.append(read_run(path, name))
    lines = terminal.chart(measure_all(both)).splitlines()
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    for said in ("What differs (", "  sampling.temperature: 1.0 | 0.7", "  model: a/model | ./b"):
        assert said in text
    for hidden in ("top_k", "fingerprints", "environment"):
        assert hidden not in text
    assert "prompt: first" in text and "... | second" in text


def test_two_runs_of_the_same_settings(tmp_path: Path) -> None:
    both = []
    for seed in range(2):
        path = write_maths(tmp_path / f"{seed}.jsonl", seed=seed)
        write_run_file(path, configuration={"seed": 0}, fingerprints={"dataset": str(seed)})
        both.append(read_run(path, str(seed)))
    said = terminal.chart(measure_all(both))
    assert "  fingerprints.dataset: 0 | 1" in said  # the same name, other content
    write_run_file(tmp_path / "1.jsonl", configuration={"seed": 0}, fingerprints={"dataset": "0"})
    both[1] = read_run(tmp_path / "1.jsonl", "1")
    assert "Their settings are the same." in terminal.chart(measure_all(both))
