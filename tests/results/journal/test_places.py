"""What belongs to a journal lies where nothing trips over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.errors import UsageError
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.record import Record
from sharegen.results.scoring.score import Score
from sharegen.results.scoring.score_file import ScoreFile, scores_path

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


def test_what_lies_beside_a_journal_by_the_name_of_its_own_is_left_alone(tmp_path: Path) -> None:
    """`NAME.run.json` may be anybody's file, and so may scores by a journal's name."""
    theirs = {"a.run.json": '{"configuration": {}}', "a.jsonl.scores.jsonl": '{"mine": 1}\n'}
    for name, text in theirs.items():
        (tmp_path / name).write_text(text)
    finished(tmp_path)
    assert {name: (tmp_path / name).read_text() for name in theirs} == theirs
    assert names(tmp_path) == [".sharegen", *sorted(["a.jsonl", *theirs])]


def test_a_journal_by_the_name_of_scores_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    other = finished(tmp_path, "a.jsonl.scores.jsonl")
    assert scores_path(path) == tmp_path / ".sharegen" / "a.jsonl.scores.jsonl"
    with pytest.raises(UsageError, match="is a journal, and its run file has the name"):
        ScoreFile(path, SETTINGS)
    assert other.exists()
