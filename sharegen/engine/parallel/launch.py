"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

from sharegen.engine.parallel.messages import Join, Setting

_WORDS = {
    signal.SIGKILL: "it was killed, perhaps for want of memory",
    signal.SIGSEGV: "it crashed",
    signal.SIGABRT: "it aborted",
}


class Process:
    """A worker on this machine, or another rank of one; `connection` speaks with it.

    It is a program of its own, not a fork, so that it may use a GPU, and a user's script needs no
    guard around its first line. It hears no Ctrl-C, which is for the driver, and ends when the
    driver does, however that happens.
    """

    def __init__(
        self, setting: Setting | Join, module: str = "sharegen.engine.parallel.worker"
    ) -> None:
        self.connection: Connection[Any, Any]
        self.connection, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is for data
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                process_group=0,
            )
        with contextlib.suppress(ConnectionError):  # one that ended at once is told by its silence
            self.connection.send(setting)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Tell it something; raises ConnectionError where it is gone."""
        self.connection.send(message)

    def why(self) -> str:
        """In words, how a worker that no longer answers has ended."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it no longer answers"
        if code >= 0:
            return f"it ended with code {code}"
        return _WORDS.get(signal.Signals(-code), f"it was ended by signal {-code}")

    def kill(self) -> None:
        """End the process at once; its connection falls silent."""
        self._process.kill()

    def end(self) -> None:
        """End the process at once; what it has not said is drawn again."""
        self.kill()
        self._process.wait()
        self.connection.close()


class Processes:
    """The workers of this machine, or others that `launch` gives a connection to."""

    def __init__(self, launch: Callable[[Setting], Process] = Process) -> None:
        self._launch = launch
        self._selector = selectors.DefaultSelector()

    def start(self, setting: Setting) -> Process:
        process = self._launch(setting)
        self._selector.register(process.connection, selectors.EVENT_READ, process)
        return process

    def listen(self) -> Iterator[tuple[Process, object]]:
        """One message of each that has some; None of one that is gone."""
        for key, _ in self._selector.select():
            process: Process = key.data
            if process.connection.closed:  # it was ended over the message of another
                continue
            try:
                message = process.connection.recv()
            except (EOFError, OSError):  # it may have ended in the middle of a word
                message = None
            yield process, message

    def end(self, process: Process) -> None:
        self._selector.unregister(process.connection)
        process.end()

    def close(self) -> None:
        self._selector.close()
