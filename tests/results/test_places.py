"""What belongs to a journal lies where nothing trips over it; what lay beside it is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.results.journal import Journal
from sharegen.results.places import hidden, settle
from sharegen.results.pool import Pool, pool
from sharegen.results.record import Record
from sharegen.results.report.scores import read_scores
from sharegen.results.run_file import RunFile, run_file_path
from sharegen.results.score import Score
from sharegen.results.score_file import ScoreFile, scores_path, without_scores

SAMPLES = [Record("p", index, "h", f"text {index}", 2, "eos", -1.0) for index in range(3)]
SETTINGS = {"dataset": "abc", "timeout": 4}
BAD = Record("q", None, None, error="no field `question`")


def finished(folder: Path, name: str = "a.jsonl") -> Path:
    """A journal that is finished and scored."""
    path = folder / name
    with Journal.open(path, {"seed": 0}) as journal:
        for record in [SAMPLES[0], BAD, *SAMPLES[1:]]:
            journal.append(record)
        journal.close()
    with ScoreFile(path, SETTINGS) as scores:
        for record in SAMPLES:
            scores.append("p", record.sample or 0, Score("passed", 1, 0.1), None)
    return path


def as_it_lay(path: Path) -> None:
    """Put everything where earlier versions had it."""
    folder = path.parent / ".sharegen"
    for file in list(folder.iterdir()):
        file.rename(path.parent / file.name)
    folder.rmdir()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_of_journals_loads_as_samples_alone(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    runs = tmp_path / "runs"
    finished(runs)
    finished(runs, "a.shard-1-of-2.jsonl")
    assert names(runs) == [".sharegen", "a.jsonl", "a.shard-1-of-2.jsonl"]
    assert len(names(runs / ".sharegen")) == 6
    table = datasets.load_dataset(str(runs), split="train", cache_dir=str(tmp_path / "cache"))
    samples = [row["completion"] for row in table if row["sample"] is not None]
    assert samples == 2 * [record.completion for record in SAMPLES] and len(table) == 8
    assert list(runs.glob("*.jsonl")) == [runs / "a.jsonl", runs / "a.shard-1-of-2.jsonl"]


def test_what_an_earlier_version_left_is_found_and_moved_by_who_writes(tmp_path: Path) -> None:
    path = finished(tmp_path)
    as_it_lay(path)
    beside = ["a.jsonl", "a.jsonl.scores.jsonl", "a.jsonl.scores.run.json", "a.run.json"]
    assert names(tmp_path) == beside
    assert run_file_path(path) == tmp_path / "a.run.json"
    assert Pool.of([path]).run == RunFile.read(tmp_path / "a.run.json")
    assert len(read_scores(path, {("p", index) for index in range(3)}) or {}) == 3
    assert [found.path for found in pool(without_scores(sorted(tmp_path.glob("*.jsonl"))))] == [
        path
    ]
    assert names(tmp_path) == beside  # who reads moves nothing
    with Journal.open(path, {"seed": 0}) as journal:
        assert len(journal.finished) == 3
        journal.close()
    assert names(tmp_path) == [".sharegen", *beside[:3]]
    with ScoreFile(path, SETTINGS) as scores:
        assert len(scores.verdicts) == 3
    assert names(tmp_path) == [".sharegen", "a.jsonl"]
    assert names(tmp_path / ".sharegen") == beside[1:]


def test_a_move_that_was_cut_short_is_made_good(tmp_path: Path) -> None:
    path = finished(tmp_path)
    settings = hidden(tmp_path / "a.jsonl.scores.run.json")
    settings.rename(tmp_path / settings.name)
    with ScoreFile(path, SETTINGS) as scores:
        assert len(scores.verdicts) == 3
    assert settings.exists() and json.loads(settings.read_text())["configuration"]["timeout"] == 4
    settle(tmp_path / "a.run.json")  # there is nothing to move


def test_of_two_the_one_in_the_folder_counts(tmp_path: Path) -> None:
    path = finished(tmp_path)
    (tmp_path / "a.run.json").write_text("{")
    assert run_file_path(path) == tmp_path / ".sharegen" / "a.run.json"


def test_a_journal_by_the_name_of_scores_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    other = finished(tmp_path, "a.jsonl.scores.jsonl")
    assert scores_path(path) == tmp_path / ".sharegen" / "a.jsonl.scores.jsonl"
    assert without_scores([path, other]) == [path, other]
