"""Workers on a CPU are copies of one process that imports for all of them what they run.

Importing torch and transformers takes a core some seconds; a copy has them at once. So the first
worker of a job costs one import instead of the driver's and its own one after the other, for the
process may import while the driver does, and the others cost none.

What is imported here is light: it is to run before the driver imports torch.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import time
from multiprocessing.connection import Connection
from typing import Any

from sharegen.engine.parallel.ahead import ModelAhead
from sharegen.engine.parallel.bounds import Bounds
from sharegen.engine.parallel.early import begin
from sharegen.engine.parallel.outline import ModelOutline
from sharegen.errors import SharegenError

_PROGRAM = "sharegen.engine.parallel.fork_server"

NUMBER = struct.Struct("!i")
LOAD = -1  # asks for a model to be loaded, whose pickle follows, after the number of its bytes
TELL = -2  # asks for that model's outline, or its error: a pickle, after the number of its bytes
COPY = 0  # asks for a copy, with the worker's end of its connection; a number else is a copy's
RUNS = 1 << 16  # beyond every exit code

_POLL_SECONDS = 0.01
_LONGEST_SECONDS = 1e6  # more than that, and no bound, a socket does not take
_ANSWER_SECONDS = 5.0  # of a process that only waits to be asked


class ForkServer:
    """The process that is copied, begun when it is first needed or told to. Close it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket
        self.is_loading = False  # or has loaded a model

    def begin(self) -> None:
        """Let it import what workers run, beside what the caller does meanwhile."""
        if self._process is None:
            self._line, theirs = socket.socketpair()
            seconds = Bounds.of_environment().start  # its imports come first
            self._line.settimeout(min(seconds, _LONGEST_SECONDS))
            with theirs:
                self._process = begin(_PROGRAM, theirs.fileno())

    def load(self, model: ModelAhead) -> None:
        """Let it load a model, where it runs, for the copies to come; nobody waits for it."""
        if self._process is None:
            return
        said = pickle.dumps(model)
        with contextlib.suppress(OSError):  # it is gone: who asks for a copy says so
            self._line.sendall(NUMBER.pack(LOAD) + NUMBER.pack(len(said)) + said)
            self.is_loading = True

    def outline(self) -> ModelOutline | None:
        """What the driver has to know of the model, once that is loaded.

        Raises what is wrong with the model. None where nobody says it: the driver finds out why.
        """
        try:
            self._line.sendall(NUMBER.pack(TELL))
            size, told = self._answer(), b""
            while len(told) < size:
                told += (part := self._line.recv(size - len(told)))
                if not part:
                    return None
            found: ModelOutline | SharegenError | None = pickle.loads(told)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            if isinstance(error, TimeoutError):
                self.close()  # what it says later would be taken for other answers
            return None
        if isinstance(found, SharegenError):
            raise found
        return found

    def copy(self, connection: Connection[Any, Any]) -> Copy:
        """A worker that is spoken to at the other end of `connection`.

        Raises SharegenError where the process is gone.
        """
        self.begin()
        try:
            socket.send_fds(self._line, [NUMBER.pack(COPY)], [connection.fileno()])
            return Copy(self, self._answer())
        except TimeoutError:
            self.close()  # what it says later would be taken for other answers
            raise SharegenError(
                "no worker can be started: the process that workers are copied from does not answer"
            ) from None
        except OSError:
            raise SharegenError(
                "no worker can be started: the process that workers are copied from is gone"
            ) from None

    def exit_code(self, pid: int) -> int | None:
        """How a copy has ended, as subprocess has it; None while it runs.

        Raises OSError where the process that knows is gone.
        """
        self._line.settimeout(_ANSWER_SECONDS)
        self._line.sendall(NUMBER.pack(pid))
        try:
            code = self._answer()
        except TimeoutError:
            self.close()  # what it says later would be taken for other answers
            raise
        return None if code == RUNS else code

    def close(self) -> None:
        """End the process. Its copies go on."""
        if self._process is not None:
            self._line.close()
            self._process.kill()
            self._process.wait()
            self._process = None
            self.is_loading = False

    def _answer(self) -> int:
        answer = self._line.recv(NUMBER.size)
        if len(answer) < NUMBER.size:
            raise ConnectionError("the process is gone")
        (number,) = NUMBER.unpack(answer)
        return int(number)


SERVER = ForkServer()
"""This process's, for the job of a command. Others, of a server or an LLM, have their own."""


class Copy:
    """A worker's process, with what is used here of subprocess.Popen.

    It is the fork server's child, and stays in the table of processes until its end was asked for.
    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 5) -> int:
        """Wait for its exit code; raises subprocess.TimeoutExpired where it runs on, or nobody
        knows.
        """
        until = time.monotonic() + timeout
        while self._code is None:
            try:
                self._code = self._server.exit_code(self.pid)
            except OSError:
                until = 0
            if self._code is None:
                if time.monotonic() > until:
                    raise subprocess.TimeoutExpired("a worker", timeout)
                time.sleep(_POLL_SECONDS)
        return self._code
