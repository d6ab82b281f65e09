"""`sharegen runs`: a line a journal, and one JSON object for programs."""

from __future__ import annotations

import json
from pathlib import Path

from sharegen.results.journal.journal import Journal
from sharegen.results.journal.record import Record
from tests.cli.conftest import Command


def test_journals_are_listed_with_how_far_they_are(sharegen: Command, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    extent = {"recipe": "prompts", "model": "owner/name", "dataset": {"source": "/d/rows.jsonl"}}
    with Journal.open(path, {"seed": 0}, extent=extent) as journal:
        journal.begin({"problems": 1, "samples_asked": 3})
        journal.append(Record("p", 0, "h"))
    ran = sharegen("runs", tmp_path)
    cells = ran.out.rstrip("\n").split("\t")
    assert ran.code == 0 and cells[:5] == [
        str(path),
        "prompts",
        "rows.jsonl",
        "owner/name",
        "1 of 3",
    ]
    (listed,) = json.loads(sharegen("runs", path, "--json").out)["runs"]
    assert (listed["samples"], listed["asked"], listed["is_running"]) == (1, 3, False)
    ran = sharegen("runs", tmp_path / "none")
    assert ran.code == 1 and "no such folder or journal" in ran.err
