"""The journals of a folder, and how far each is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sharegen.errors import DataError
from sharegen.job.listing import journals_in
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import run_file_path

EXTENT = {
    "recipe": "prompts",
    "model": "/models/tiny",
    "dataset": {"source": "/data/rows.jsonl"},
}


def fill(path: Path, samples: int, at: int) -> Path:
    with Journal.open(path, {"seed": 0}, extent=EXTENT) as journal:
        journal.begin({"problems": 2, "samples_asked": 8})
        for index in range(samples):
            journal.append(Record("p", index, "h"))
        journal.append(Record("bad", None, None, error="no field"))
    os.utime(path, (at, at))
    return path


def test_recipe_data_model_and_samples_of_all(tmp_path: Path) -> None:
    old, new = fill(tmp_path / "b.jsonl", 3, 10), fill(tmp_path / "a.jsonl", 8, 20)
    (tmp_path / "rows.jsonl").write_text('{"question": "Why?"}\n')
    found = list(journals_in([tmp_path, old]))
    assert [listed.path for listed in found] == [new, old]
    assert [(listed.samples, listed.asked) for listed in found] == [(8, 8), (3, 8)]
    assert (found[0].recipe, found[0].dataset, found[0].model) == ("prompts", "rows.jsonl", "tiny")
    assert found[0].written.timestamp() == 20 and not found[0].is_running
    with Journal.open(old, {"seed": 0}, extent=EXTENT):
        assert [listed.is_running for listed in journals_in([old])] == [True]


def test_a_broken_one_is_listed_with_what_is_wrong(tmp_path: Path) -> None:
    paths = [fill(tmp_path / f"{name}.jsonl", 2, at) for at, name in enumerate("ab")]
    run_file_path(paths[0]).write_text("{")
    run_file_path(paths[1]).unlink()
    second, first = journals_in([tmp_path])
    assert second.fault == "has no run file" and "is not JSON" in (first.fault or "")
    assert first.samples == second.samples == 2
    with pytest.raises(DataError, match="nowhere: no such folder or journal: name yours"):
        list(journals_in([tmp_path / "nowhere"]))
