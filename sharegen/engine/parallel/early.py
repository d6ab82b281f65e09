"""Our own modules as programs beside this one, and those that are begun before they are needed.

A worker on a GPU, and a rank, import torch and transformers for some seconds, as the process that
asks for them does. Begun with the job, they do that at the same time, and wait for their first
message.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections import defaultdict
from multiprocessing.connection import Connection, Pipe
from typing import Any

from sharegen.common.import_path import import_path
from sharegen.common.interpreter import start_interpreter

WORKER = "sharegen.engine.parallel.worker"
RANK = "sharegen.engine.parallel.rank"

_PROGRAM = "sharegen.engine.parallel.program"

_END_SECONDS = 5.0  # for a process that was killed to be gone

Begun = tuple["Connection[Any, Any]", "subprocess.Popen[bytes]"]
"""Our end of what a process is told through, and the process."""


def begin(module: str, descriptor: int, ranks: int = 1) -> subprocess.Popen[bytes]:
    """Run a module with the number of a descriptor that it is handed. ranks: that it will have.

    It is a program of its own, not a fork, so that it may use a GPU, and a user's script needs no
    guard around its first line. It ends with this process.
    """
    return start_interpreter(["-m", _PROGRAM, module, str(ranks)], descriptor, import_path())


class EarlyProcesses:
    """Those that were begun and not taken yet, by their modules. Close it."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Begun]] = defaultdict(list)

    def begin(self, module: str, count: int, ranks: int = 1) -> None:
        """Let so many processes import a module. ranks: of each, which begins its own others."""
        for _ in range(count):
            ours, theirs = Pipe()
            with theirs:
                self._waiting[module].append((ours, begin(module, theirs.fileno(), ranks)))

    def take(self, module: str) -> Begun | None:
        """One of them; None where none is left."""
        waiting = self._waiting[module]
        return waiting.pop() if waiting else None

    def close(self) -> None:
        """End those that nobody took."""
        for waiting in self._waiting.values():
            while waiting:
                connection, process = waiting.pop()
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
                connection.close()


EARLY = EarlyProcesses()
"""This process's."""
