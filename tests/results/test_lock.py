"""Whether another process writes a file, asked without disturbing those who start to."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from sharegen.errors import JournalError, UsageError
from sharegen.results.lock import hold, let_go, refuse_held


def test_a_file_that_is_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    refuse_held(path)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(JournalError, match="another process is writing it, and both"):
            refuse_held(path)
    refuse_held(path)


def test_several_may_ask_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as another that asks does
        refuse_held(path)


def test_without_the_kernel_s_locks_the_file_beside_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    path = tmp_path / "a.jsonl"
    path.touch()
    refuse_held(path)
    descriptor = os.open(path, os.O_RDWR)
    lock = hold(path, descriptor)
    assert "a.jsonl.lock beside it says who writes" in caplog.text
    with pytest.raises(JournalError, match="another process is writing it"):
        refuse_held(path)
    let_go(descriptor, lock)
    refuse_held(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"a\.jsonl: cannot be read"):
        refuse_held(tmp_path / "a.jsonl")


def test_locks_are_files_where_the_environment_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: pytest.fail("it may hang"))
    monkeypatch.setenv("SHAREGEN_LOCK", "file")
    path = tmp_path / "a.jsonl"
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    lock = hold(path, descriptor)
    with pytest.raises(JournalError, match="another process is writing it, and both"):
        refuse_held(path)
    let_go(descriptor, lock)
    refuse_held(path)
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]
    monkeypatch.setenv("SHAREGEN_LOCK", "maybe")
    with pytest.raises(UsageError, match="SHAREGEN_LOCK=maybe: it is file"):
        refuse_held(path)
