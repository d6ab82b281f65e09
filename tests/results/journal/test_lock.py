"""Whether another process writes a file, asked without disturbing those who start to."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from sharegen.errors import JournalError, UsageError
from sharegen.results.journal.lock import hold, is_held, let_go, starting


def test_a_file_that_is_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    assert not is_held(path)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_held(path)
    assert not is_held(path)


def test_several_may_ask_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # as another that asks does
        assert not is_held(path)


def test_without_the_kernel_s_locks_the_file_beside_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    path = tmp_path / "a.jsonl"
    path.touch()
    assert not is_held(path)
    descriptor = os.open(path, os.O_RDWR)
    lock = hold(path, descriptor)
    assert "a.jsonl.lock says who writes" in caplog.text
    assert is_held(path)
    let_go(descriptor, lock)
    assert not is_held(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"a\.jsonl: cannot be read"):
        is_held(tmp_path / "a.jsonl")


def test_locks_are_files_where_the_environment_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", lambda *_: pytest.fail("it may hang"))
    monkeypatch.setenv("SHAREGEN_LOCK", "file")
    path = tmp_path / "a.jsonl"
    path.touch()
    descriptor = os.open(path, os.O_RDWR)
    lock = hold(path, descriptor)
    assert is_held(path)
    let_go(descriptor, lock)
    assert not is_held(path)
    assert not list((tmp_path / ".sharegen").iterdir())
    monkeypatch.setenv("SHAREGEN_LOCK", "maybe")
    with pytest.raises(UsageError, match="SHAREGEN_LOCK=maybe: it is file"):
        assert not is_held(path)


KINDS = ["", "file"]


@pytest.mark.parametrize("first", KINDS)
@pytest.mark.parametrize("second", KINDS)
def test_of_two_that_lock_differently_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    one, two = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    monkeypatch.setenv("SHAREGEN_LOCK", first)
    held = hold(path, one)
    monkeypatch.setenv("SHAREGEN_LOCK", second)
    with pytest.raises(JournalError, match="another process is writing it"):
        hold(path, two)
    os.close(two)
    assert is_held(path)
    let_go(one, held)
    assert not is_held(path)
    three = os.open(path, os.O_RDWR)
    let_go(three, hold(path, three))


def test_the_mark_of_a_process_that_is_gone_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.touch()
    mark = tmp_path / ".sharegen" / "a.jsonl.flock"
    killed = os.fork()
    if not killed:
        hold(path, os.open(path, os.O_RDWR))
        os._exit(0)
    os.waitpid(killed, 0)
    assert mark.read_text().startswith(f"{killed}\n")
    monkeypatch.setenv("SHAREGEN_LOCK", "file")
    assert not is_held(path)
    descriptor = os.open(path, os.O_RDWR)
    let_go(descriptor, hold(path, descriptor))
    mark.write_text("17\nelsewhere\n")
    descriptor = os.open(path, os.O_RDWR)
    with pytest.raises(JournalError, match=f"process 17 on elsewhere.*remove {mark}"):
        hold(path, descriptor)
    monkeypatch.delenv("SHAREGEN_LOCK")
    let_go(descriptor, hold(path, descriptor))  # the kernel knows that it is gone
    assert not mark.exists()


def test_who_starts_waits_for_who_starts_before(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    order = []

    def start(name: str) -> None:
        with starting(path):
            order.append(name)
            time.sleep(0.1)
            order.append(name)

    threads = [threading.Thread(target=start, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order in (["a", "a", "b", "b"], ["b", "b", "a", "a"])
