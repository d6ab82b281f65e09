"""Files of one job are read as one; those of other jobs stay apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharegen.errors import JournalError
from sharegen.results.journal import Journal, Record
from sharegen.results.pool import pool


def journal(path: Path, seed: int, *records: tuple[str, int, str]) -> Path:
    with Journal.open(path, {"seed": seed}, extent={"path": str(path)}) as opened:
        for problem, sample, answer in records:
            opened.append(Record(problem, sample, "h", answer=answer))
        opened.close()
    return path


def test_files_are_grouped_by_what_made_them(tmp_path: Path) -> None:
    first = journal(tmp_path / "first.jsonl", 0, ("a", 0, "1"), ("a", 1, "2"))
    other = journal(tmp_path / "other.jsonl", 1, ("a", 0, "3"))
    second = journal(tmp_path / "second.jsonl", 0, ("a", 1, "9"), ("b", 0, "4"))
    bare = tmp_path / "bare.jsonl"
    bare.write_bytes(second.read_bytes())
    pools = pool([first, other, second, bare, first])
    assert [part.files for part in pools] == [[first, second], [other], [bare]]
    together = [(r.problem_id, r.sample, r.answer) for r in pools[0].records()]
    assert together == [("a", 0, "1"), ("a", 1, "2"), ("b", 0, "4")]
    assert pools[0].name == f"{first}, {second}"


def test_a_line_that_repeats_one_of_its_file_is_reported(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", 0, ("a", 0, "1"))
    path.write_bytes(path.read_bytes() * 2)
    (part,) = pool([path])
    assert len(list(part.records())) == 1 and part.duplicates == {path: [2]}


def test_a_broken_run_file_or_a_missing_journal_is_named(tmp_path: Path) -> None:
    path = journal(tmp_path / "a.jsonl", 0)
    (tmp_path / "a.run.json").write_text("{")
    with pytest.raises(JournalError, match=r"a\.run\.json: is not JSON"):
        pool([path])
    with pytest.raises(JournalError, match=r"none\.jsonl: cannot be read"):
        list(pool([tmp_path / "none.jsonl"])[0].records())
