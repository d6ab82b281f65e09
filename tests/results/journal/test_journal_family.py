"""The journals of one job as a run finds them: each is read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal_family import JournalFamily
from sharegen.results.journal.run_file import RunFile


def test_a_run_reads_the_run_file_of_a_journal_that_was_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("")
    read, count = RunFile.read, list[object]()

    def counted(*given: object) -> object:
        count.append(given)
        return read(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(RunFile, "read", counted)
    found = FoundJournal(path, "")
    assert found.run is None
    family = JournalFamily(path, found)
    assert family.own is found and family.own.run is None and len(count) == 1
    assert JournalFamily(tmp_path / "b.jsonl", found).own is not found
