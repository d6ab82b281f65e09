"""Hearing workers of this machine, the last words of dying ones too."""

from __future__ import annotations

import os
import struct
from multiprocessing.connection import Connection
from typing import Any

import pytest

from sharegen.engine.parallel.launch import EngineProcess, Processes
from sharegen.engine.parallel.messages import Setting


class Dying(EngineProcess):
    """A worker that is gone when it has said so much."""

    said = b""

    def _begin(self, theirs: Connection[Any, Any], *_: object) -> Any:
        os.write(theirs.fileno(), self.said)

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
