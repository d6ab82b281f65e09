"""However a job of several engines ends: a whole journal, no workers, and it continues."""

from __future__ import annotations

import errno
import json
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.messages import WorkersError
from sharegen.errors import JournalError
from sharegen.job.interrupt import Interrupted
from sharegen.job.run_job import Watcher, run_job
from sharegen.results.journal.appended import AppendedFile
from tests.engine.parallel.forked import forked
from tests.job.test_workers import configuration, dataset, folder, lines, one

__all__ = ["dataset", "folder", "one"]  # fixtures
pytestmark = pytest.mark.slow


class Then(Watcher):
    """Calls something when so many samples are drawn."""

    def __init__(self, samples: int, act: Callable[[], object]) -> None:
        self.left, self.act = samples, act

    def sampling(self, stats: Any, *counts: Any) -> Any:
        return self

    def __enter__(self) -> Then:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def advance(self, tokens: int, problem_done: bool) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


@pytest.fixture(autouse=True)
def drivers(monkeypatch: pytest.MonkeyPatch) -> list[Driver]:
    """Those that were started; their workers are forked."""
    started: list[Driver] = []
    begin = Driver.__init__

    def note(self: Driver, *given: Any, **more: Any) -> None:
        started.append(self)
        begin(self, *given, **more)

    monkeypatch.setattr(Driver, "__init__", note)
    monkeypatch.setattr("sharegen.engine.parallel.opening.Processes", forked)
    monkeypatch.setattr("sharegen.engine.parallel.copies.ForkServer.begin", lambda server: None)
    return started


def assert_continues(folder: Path, dataset: Path, path: Path, one: Path) -> None:
    """All lines are whole; the same command draws the rest, and all that one engine does."""
    kept = path.read_text()
    assert kept.endswith("\n") and 0 < len(kept.splitlines()) < 151
    assert all(json.loads(line) for line in kept.splitlines())
    outcome = run_job(configuration(folder, dataset, workers=2), path)
    assert outcome.drawn > 0 and path.read_text().startswith(kept)
    assert lines(path) == lines(one)


def assert_gone(pids: list[int]) -> None:
    """The workers are ended when the job is."""
    assert pids and not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.turn(2)
def test_interrupted(
    folder: Path, dataset: Path, one: Path, tmp_path: Path, drivers: list[Driver], number: int
) -> None:
    path, pids = tmp_path / "job.jsonl", []

    def stop() -> None:
        pids.extend(drivers[0].pids)
        os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match="again to continue"):
        run_job(configuration(folder, dataset, workers=2), path, watcher=Then(9, stop))
    assert_gone(pids)
    assert_continues(folder, dataset, path, one)


def test_a_full_disk(
    folder: Path,
    dataset: Path,
    one: Path,
    tmp_path: Path,
    drivers: list[Driver],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, pids, count = tmp_path / "job.jsonl", [], 0
    append = AppendedFile.append

    def full(self: AppendedFile, line: bytes) -> None:
        nonlocal count
        count += 1
        if count == 20:
            pids.extend(drivers[0].pids)
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(AppendedFile, "append", full)
        with pytest.raises(JournalError, match="No space left on device"):
            run_job(configuration(folder, dataset, workers=2), path)
    assert_gone(pids)
    assert_continues(folder, dataset, path, one)


def test_the_last_worker_dies(
    folder: Path, dataset: Path, one: Path, tmp_path: Path, drivers: list[Driver]
) -> None:
    path = tmp_path / "job.jsonl"

    def kill() -> None:
        for pid in drivers[0].pids:
            os.kill(pid, signal.SIGKILL)

    with warnings.catch_warnings(record=True) as told, pytest.raises(WorkersError) as raised:
        warnings.simplefilter("always")
        run_job(configuration(folder, dataset, workers=2), path, watcher=Then(9, kill))
    assert str(raised.value).startswith("the last worker is gone: it was killed")
    assert raised.value.exit_code == 1
    assert len(told) == 1 and str(told[0].message).endswith("the others go on")
    assert_continues(folder, dataset, path, one)
