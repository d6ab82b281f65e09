"""Answers are read anew from the samples: a wrong pattern costs none of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.results.journal.journal import Journal, Record
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.configuration import Configuration, resolve
from tests.cli.conftest import Command, write_jsonl

ROWS = [
    {"id": "a", "question": "1 + 1?", "answer": "#### 2", "letter": 0},
    {"id": "b", "question": "1 + 2?", "answer": "#### 3", "letter": 1},
]
TEXTS = {"a": ["It is [2].", "It is [5].", "It is [2]."], "b": ["[4]", "[3]", "none"]}
WRONG = r"\((\d+)\)"  # finds nothing: the answers stand in square brackets
RIGHT = r"answer.patterns=['\[(\d+)\]']"


def configured(folder: Path, pattern: str) -> Configuration:
    answer = {"extract": None, "patterns": [pattern], "gold": {"pattern": r"#### (\d+)"}}
    flags = {"model": "a/b", "few_shot": {"k": 0}, "answer": answer}
    return resolve("self-consistency", str(folder / "rows.jsonl"), flags)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Samples that were drawn under a pattern that finds no answer."""
    write_jsonl(tmp_path / "rows.jsonl", ROWS)
    path = tmp_path / "j.jsonl"
    job = configured(tmp_path, WRONG)
    with Journal.open(path, job.identity, extent=job.extent) as opened:
        for (name, texts), gold in zip(TEXTS.items(), "23", strict=True):
            for sample, text in enumerate(texts):
                opened.append(Record(name, sample, f"h{name}", text, gold=gold))
        opened.close()
    return path


def test_a_vote_reads_by_the_keys_that_are_set(sharegen: Command, journal: Path) -> None:
    assert "no sample has an answer" in sharegen("vote", journal).err
    before = journal.read_bytes()
    ran = sharegen("vote", journal, "--set", RIGHT, "-o", "-")
    votes = [json.loads(line) for line in ran.out.splitlines()]
    assert [(v["answer"], v["votes"], v["correct"]) for v in votes] == [
        ("2", 2, True),
        ("4", 1, False),
    ]
    assert "read anew, by the recipe as it is now: 5 of 6 samples are read otherwise" in ran.err
    assert ran.err.count("read anew") == 1
    assert journal.read_bytes() == before


def test_a_vote_reads_by_a_recipe_and_finds_its_gold_answers_in_the_dataset(
    sharegen: Command, journal: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "prompt: '{{ question }}'\n"
        "answer:\n  patterns: ['\\[(\\d+)\\]']\n  gold: {template: \"{{ '54'[letter] }}\"}\n"
    )
    ran = sharegen("vote", journal, "--recipe", "mine.yaml", "-o", "-")
    assert [json.loads(line)["correct"] for line in ran.out.splitlines()] == [False, True]
    assert "5 of 6 samples, and the gold answers of 2 problems, are read otherwise" in ran.err
    (tmp_path / "rows.jsonl").unlink()
    gone = sharegen("vote", journal, "--recipe", "mine.yaml")
    assert gone.code == 1 and "gold answers are read anew: " in gone.err
    assert "Traceback" not in gone.err


@pytest.mark.parametrize("command", ["vote", "score", "report", "show"])
def test_what_decided_the_samples_cannot_be_read_anew(
    sharegen: Command, journal: Path, command: str
) -> None:
    more = ["--problem", "a"] if command == "show" else []
    ran = sharegen(command, journal, *more, "--set", "sampling.seed=1")
    assert ran.code == 2 and "--set sampling.seed: only answer.*" in ran.err
    ran = sharegen(command, journal, *more, "--set", "answer.extract=numbre")
    assert ran.code == 2 and "answer.extract" in ran.err and "'number'" in ran.err
    assert "'boxed'" in ran.err and ran.err.count("\n") == 1


def test_score_report_and_show_read_anew(sharegen: Command, journal: Path) -> None:
    score = sharegen("score", journal, "--set", RIGHT, "--k", "1", "--json")
    [job] = json.loads(score.out)["jobs"]
    assert job["estimates"][0]["mean"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    report = sharegen("report", journal, "--set", RIGHT, "--json")
    [run] = json.loads(report.out)["runs"]
    assert run["curves"]["pass@k"][0]["mean"] == pytest.approx(0.5)
    assert (
        run["answers"]
        == job["answers"]
        != json.loads(sharegen("report", journal, "--json").out)["runs"][0]["answers"]
    )
    shown = sharegen("show", journal, "--problem", "a", "--set", RIGHT)
    assert "answer 5 ✗" in shown.out and "answer 2 ✓" in shown.out


def test_a_run_with_another_pattern_goes_on_and_is_what_a_vote_reads_by(
    sharegen: Command, job: list[object], tmp_path: Path
) -> None:
    assert sharegen(*job, "--set", r"answer.patterns=['\[never\]']", "-n", 2).code == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    hashes = [recorded(tmp_path)]
    reads = ["--set", "answer={extract: null, patterns: ['.'], match: first}"]
    reads += ["--set", "answer.gold={field: question, pattern: 'Tom'}"]
    more = sharegen(*job, *reads, "-n", 3)
    assert more.code == 0, more.err
    after = (tmp_path / "out.jsonl").read_bytes()
    assert after.startswith(before) and len(after) > len(before)
    hashes.append(recorded(tmp_path))
    again = sharegen(*job, *reads, "-n", 3)
    assert "on record already" in again.err and (tmp_path / "out.jsonl").read_bytes() == after
    assert hashes[0] != hashes[1] == recorded(tmp_path)
    (tmp_path / "rows.jsonl").unlink()  # a vote needs the dataset no more
    ran = sharegen("vote", "out.jsonl", "-o", "-")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    golds = RunFile.read(run_file_path(tmp_path / "out.jsonl")).answers["golds"]  # type: ignore[union-attr]
    assert set(golds.values()) == {"Tom"} and len(golds) == len(lines) == 6
    assert not any(line["correct"] for line in lines)
    assert "and the gold answers of 6 problems" in ran.err


def test_problems_that_a_run_does_not_ask_are_read_by_its_recipe_too(
    sharegen: Command, job: list[object], tmp_path: Path
) -> None:
    assert sharegen(*job, "-n", 2).code == 0
    reads = ["--set", "answer={extract: null, patterns: ['.'], match: first}"]
    reads += ["--set", "answer.gold={field: question, pattern: 'Tom'}"]
    assert sharegen(*job, *reads, "-n", 2, "--limit", 2).code == 0
    lines = sharegen("vote", "out.jsonl").out.splitlines()[1:]
    assert len(lines) == 6 and all(line.endswith("Tom") for line in lines)
    assert sharegen(*job, *reads, "-n", 2).code == 0  # asks all, so that lines and run.json will do
    (tmp_path / "rows.jsonl").unlink()
    ran = sharegen("vote", "out.jsonl")
    assert all(line.endswith("Tom") for line in ran.out.splitlines()[1:])
    assert "as its lines have them" not in ran.err


def test_another_extractor_needs_no_dataset(
    sharegen: Command, journal: Path, tmp_path: Path
) -> None:
    """Gold answers stay as they were read: only where else they stand must be looked up."""
    (tmp_path / "rows.jsonl").unlink()
    ran = sharegen("vote", journal, "--set", "answer={extract: number, patterns: []}", "-o", "-")
    assert ran.code == 0 and "gold answers are as its lines have them: " in ran.err
    assert next(json.loads(line)["correct"] for line in ran.out.splitlines()) is True


def test_shards_of_different_recipes_are_read_by_the_latest(
    sharegen: Command, journal: Path, tmp_path: Path
) -> None:
    """The gold answers of the earlier one are read from the dataset, or told if it is gone."""
    paths = [tmp_path / f"{name}.jsonl" for name in "ab"]
    answers = [
        {"extract": None, "patterns": [WRONG], "gold": {"pattern": r"#### (\d+)"}},
        {"extract": None, "patterns": [r"\[(\d+)\]"], "gold": {"field": "id", "pattern": None}},
    ]
    for path, name, answer, day in zip(paths, TEXTS, answers, "12", strict=True):
        flags = {"model": "a/b", "few_shot": {"k": 0}, "answer": answer}
        job = resolve("self-consistency", str(tmp_path / "rows.jsonl"), flags)
        date = {"date": f"2026-11-0{day}T00:00:00+00:00"}
        with Journal.open(path, job.identity, extent=job.extent, environment=date) as opened:
            for sample, text in enumerate(TEXTS[name]):
                opened.append(Record(name, sample, f"h{name}", text, gold="2"))
            opened.close()
    ran = sharegen("vote", *paths, "-o", "-")
    votes = {line["problem_id"]: line for line in map(json.loads, ran.out.splitlines())}
    assert votes["a"]["answer"] == "2" and votes["a"]["correct"] is False  # the gold is "a" now
    (tmp_path / "rows.jsonl").unlink()
    ran = sharegen("vote", *paths, "-o", "-")
    assert ran.code == 0 and "gold answers are as its lines have them" in ran.err


def recorded(folder: Path) -> str:
    run = RunFile.read(run_file_path(folder / "out.jsonl"))
    assert run is not None and run.extent["answer"]
    return str(run.answers["hash"])
