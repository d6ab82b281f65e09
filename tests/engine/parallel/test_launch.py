"""Hearing workers of this machine, the last words of dying ones too."""

from __future__ import annotations

import os
import struct
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharegen.engine.config import EngineConfig
from sharegen.engine.parallel.launch import Process, Processes
from sharegen.engine.parallel.messages import Failed, Setting


class Dying(Process):
    """A worker that is gone when it has said so much."""

    said = b""

    def __init__(self, setting: Setting) -> None:
        theirs: Connection[Any, Any]
        self.connection, theirs = Pipe()
        os.write(theirs.fileno(), self.said)
        theirs.close()

    def end(self) -> None:
        self.connection.close()


@pytest.mark.parametrize("said", [b"", b"\0\0", struct.pack("!i", 100) + b"the first bytes of"])
def test_one_that_dies_in_the_middle_of_a_word(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dying, "said", said)
    processes = Processes(Dying)
    worker = processes.start(Setting("model", None, None))  # type: ignore[arg-type]
    assert list(processes.listen()) == [(worker, None)]
    processes.end(worker)


@pytest.mark.slow
def test_spares_are_the_first_workers_and_end_with_the_last(tmp_path: Path) -> None:
    """What they are told decides what they are; who is told nothing leaves nothing behind."""
    before = set(psutil.Process().children())
    processes = Processes(spares=3)
    spares = {child.pid for child in psutil.Process().children()} - {one.pid for one in before}
    worker = processes.start(Setting(str(tmp_path / "none"), None, EngineConfig()))
    assert worker.pid in spares and len(spares) == 3
    [(who, said)] = processes.listen()
    assert who is worker and isinstance(said, Failed) and "none" in str(said.error)
    processes.end_spares()
    assert {child.pid for child in psutil.Process().children()} & spares <= {worker.pid}
    another = processes.start(Setting(str(tmp_path / "none"), None, EngineConfig()))
    assert another.pid not in spares
    for each in (worker, another):
        processes.end(each)
    processes.close()
    processes.close()
    assert set(psutil.Process().children()) <= before
