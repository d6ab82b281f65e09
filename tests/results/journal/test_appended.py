"""A file that somebody else changes while lines are appended to it: told, and no line is lost."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sharegen.errors import JournalError
from sharegen.results.journal import journal as journal_module
from sharegen.results.journal.appended import AppendedFile, Changed
from sharegen.results.journal.journal import Journal, Record, read
from sharegen.results.journal.run_file import run_file_path
from sharegen.results.scoring.score import Score
from sharegen.results.scoring.score_file import ScoreFile, scores_path

RECORDS = [Record(str(number), 0, "h", f"text {number}", 2, "eos", -1.0) for number in range(6)]
CONFIGURATION = {"seed": 0}


def delete(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("elsewhere.jsonl"))


def replace_by_rename(path: Path) -> None:
    """As `sed -i 1d` and most editors do."""
    other = path.with_name("sedXXXX")
    other.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    other.rename(path)


def replace_unterminated(path: Path) -> None:
    """As an editor that leaves out the last newline and ends lines in its own way."""
    path.unlink()
    path.write_bytes(RECORDS[0].to_line().replace(b"\n", b"\r\n") + b'{"mine": 1}')


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def save_in_place(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"text 1", b"TEXT"))


def add(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"half a line": ')


def remove_folder(path: Path) -> None:
    path.unlink()
    shutil.rmtree(path.parent, ignore_errors=True)


CHANGES = {
    delete: "was deleted",
    move: "was moved away",
    replace_by_rename: "was replaced by another file",
    replace_unterminated: "was replaced by another file",
    empty: "was cut or saved anew",
    cut: "was cut or saved anew",
    save_in_place: "was cut or saved anew",
    add: "was written to by somebody else",
    remove_folder: "was deleted",
}


def records_after(path: Path) -> list[str]:
    """What is on record once the advice is followed."""
    for kept in path.parent.glob("*.rescued*.jsonl"):
        with path.open("ab") as file:
            file.write(kept.read_bytes())
        kept.unlink()
    with Journal.open(path, CONFIGURATION) as journal:
        return sorted(record.problem_id for record in journal.records())


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("then", ["append", "close"])
def test_a_change_is_told_and_no_sample_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], then: str
) -> None:
    monkeypatch.setattr(journal_module, "_SYNC_SECONDS", 0.01)
    path = tmp_path / "runs" / "a.jsonl"
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        journal.close()
    drawn = 1
    with Journal.open(path, CONFIGURATION) as journal:
        for record in RECORDS[1:4]:
            journal.append(record)
            drawn += 1
        change(path)
        with pytest.raises(Changed, match=f"a\\.jsonl: {CHANGES[change]}") as caught:
            if then == "append":
                time.sleep(0.05)
                journal.append(RECORDS[4])
            journal.close()
    assert "\n" not in str(caught.value) and "run the same command again" in str(caught.value)
    found = records_after(path)
    # What an earlier run had, and somebody removed from the file itself, is nobody's to bring back.
    lost = {"0"} if change is empty else set()
    assert set(found) == {record.problem_id for record in RECORDS[:drawn]} - lost


def test_what_is_kept_has_a_name_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    (tmp_path / "a.rescued.jsonl").write_text("mine")
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        path.unlink()
        with pytest.raises(Changed, match=r"the line that it lacks is in .*a\.rescued-2\.jsonl"):
            journal.close()
    assert (tmp_path / "a.rescued.jsonl").read_text() == "mine"
    assert [*read(tmp_path / "a.rescued-2.jsonl")] == RECORDS[:1]


def test_a_file_that_left_its_server_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(*_: object) -> int:
        raise OSError(errno.ESTALE, "Stale file handle")

    path = tmp_path / "a.jsonl"
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        path.unlink()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", stale)
            patched.setattr(os, "fstat", stale)
            with pytest.raises(Changed, match=r"on its server \(Stale file handle\)|was deleted"):
                journal.append(RECORDS[1])
    assert records_after(path) == ["0"]


def test_a_run_file_that_is_removed_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "_SYNC_SECONDS", 0.01)
    path = tmp_path / "a.jsonl"
    with Journal.open(path, CONFIGURATION) as journal:
        journal.append(RECORDS[0])
        run_file_path(path).unlink()
        deadline = time.monotonic() + 5
        while not run_file_path(path).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert run_file_path(path).exists()
    assert "a.run.json: was removed while" in caplog.text and "it is there again" in caplog.text
    assert records_after(path) == ["0"]


def test_scores_that_are_deleted_while_they_are_written_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    said = r"scores\.jsonl: was deleted .*rescued"
    with pytest.raises(Changed, match=said), ScoreFile(path, {"dataset": "d"}) as scores:
        scores.append("p", 0, Score("passed", 1, 0.1), None)
        scores_path(path).unlink()


def test_a_link_that_nobody_named_is_not_followed(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine\n")
    scores = scores_path(tmp_path / "a.jsonl")
    scores.parent.mkdir()
    scores.symlink_to(mine)
    with pytest.raises(JournalError, match="it is a symbolic link, which nobody named"):
        ScoreFile(tmp_path / "a.jsonl", {}, overwrite=True)
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "b on another disk.jsonl")
    AppendedFile.open(tmp_path / "b.jsonl").close()  # as one that the user named
    assert mine.read_text() == "mine\n" and (tmp_path / "b on another disk.jsonl").exists()


def test_who_was_there_first_and_left_nothing_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    AppendedFile.open(path).discard()
    assert not path.exists()
    file = AppendedFile.open(path)
    file.append(b"line\n")
    file.discard()
    assert path.read_bytes() == b"line\n"
    AppendedFile.open(path).discard()
    assert path.exists()
