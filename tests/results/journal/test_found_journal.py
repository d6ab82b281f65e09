"""A journal that may be there: what was read of it is read again only where it changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.common.shard import Shard
from sharegen.results.journal import found_journal
from sharegen.results.journal.found_journal import FoundJournal, journals_with_run_files
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import RunFile


def test_a_run_file_is_read_where_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = FoundJournal(tmp_path / "a.jsonl")
    assert found.run is None and found.size == 0
    with Journal.open(found.path, {"seed": 1}) as journal:
        journal.append(Record("a", 0, "h", completion="x", finish_reason="eos"))
        journal.close()
    assert found.run is not None and found.run.configuration == {"seed": 1}
    with monkeypatch.context() as patch:
        patch.delattr(RunFile, "read")
        assert found.run.configuration == {"seed": 1}
    assert found.on_record() is found.on_record()
    assert [record.key for record in found.records()] == list(found.on_record().drawn)
    with monkeypatch.context() as patch:  # who opens it reads nothing again
        patch.setattr(found_journal, "read", None)
        Journal.open(found.path, {"seed": 1}, found=found).close()
    with Journal.open(found.path, {"seed": 1}, found=found) as journal:
        journal.append(Record("a", 1, "h", completion="y", finish_reason="eos"))
        journal.close()
    assert len(found.on_record().drawn) == 2


def test_its_name_says_which_shard_it_is_of(tmp_path: Path) -> None:
    shard = FoundJournal(tmp_path / "a.shard-2-of-3.jsonl")
    assert (shard.shard, shard.whole) == (Shard(2, 3), tmp_path / "a.jsonl")
    whole = FoundJournal(tmp_path / "a.jsonl")
    assert (whole.shard, whole.whole) == (None, whole.path)


def test_a_folder_s_run_files_name_its_journals(tmp_path: Path) -> None:
    assert journals_with_run_files(tmp_path) == []
    paths = [tmp_path / name for name in ("b.jsonl", "a.shard-1-of-2.jsonl")]
    for path in paths:
        RunFile().write(FoundJournal(path).run_file)
    found = journals_with_run_files(tmp_path)
    assert [journal.path for journal in found] == sorted(paths)
    assert all(journal.run == RunFile() for journal in found)
