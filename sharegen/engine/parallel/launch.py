"""Workers as processes of this machine."""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

from sharegen.engine.parallel.copies import Copy, ForkServer
from sharegen.engine.parallel.early import EARLY, WORKER, begin
from sharegen.engine.parallel.liveness import LISTEN_SECONDS
from sharegen.engine.parallel.messages import Join, Setting
from sharegen.engine.parallel.outbox import Outbox

_END_SECONDS = 5.0  # for a process that was killed to be gone
_WORDS = {
    signal.SIGKILL: "it was killed, perhaps for want of memory",
    signal.SIGSEGV: "it crashed",
    signal.SIGABRT: "it aborted",
}


class EngineProcess:
    """A worker on this machine, or another rank of one; `connection` speaks with it.

    It hears no Ctrl-C, and ends when the driver does, however that happens. server: what it is a
    copy of; without one it is a program, `module`, which may run already.
    """

    def __init__(
        self,
        setting: Setting | Join,
        module: str = WORKER,
        server: ForkServer | None = None,
    ) -> None:
        self.connection: Connection[Any, Any]
        self._process: subprocess.Popen[bytes] | Copy
        early = EARLY.take(module) if server is None else None
        if early is not None:
            self.connection, self._process = early
        else:
            self.connection, theirs = Pipe()
            with theirs:
                self._process = self._begin(theirs, module, server)
        self._outbox = Outbox(self.connection)
        with contextlib.suppress(ConnectionError):  # one that ended at once is told by its silence
            self.send(setting)

    def _begin(
        self, theirs: Connection[Any, Any], module: str, server: ForkServer | None
    ) -> subprocess.Popen[bytes] | Copy:
        if server is None:
            return begin(module, theirs.fileno())
        return server.copy(theirs)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: object) -> None:
        """Send it a message; raises ConnectionError where it is gone."""
        self._outbox.send(message)

    def why(self) -> str:
        """Say how a worker that no longer answers has ended."""
        try:
            code = self._process.wait(_END_SECONDS)
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
        with contextlib.suppress(subprocess.TimeoutExpired):  # nobody is left who knows
            self._process.wait(_END_SECONDS)
        self.connection.close()


class Processes:
    """The workers of this machine, or others that `launch` gives a connection to.

    server: what those on a CPU are copies of, where it runs already.
    """

    def __init__(
        self,
        launch: Callable[[Setting], EngineProcess] | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self._launch = launch or self._begin
        self._server = server or ForkServer()
        self._selector = selectors.DefaultSelector()
        self._bell, self._rope = socket.socketpair()  # what rings ends the wait for messages
        self._rope.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ)

    def start(self, setting: Setting) -> EngineProcess:
        process = self._launch(setting)
        self._selector.register(process.connection, selectors.EVENT_READ, process)
        return process

    def listen(self) -> Iterator[tuple[EngineProcess, object]]:
        """One message of each that has some, None of one that is gone; nothing in silence."""
        for key, _ in self._selector.select(LISTEN_SECONDS):
            if key.fileobj is self._bell:
                self._bell.recv(4096)
                continue
            process: EngineProcess = key.data
            if process.connection.closed:  # it was ended over the message of another
                continue
            try:
                message = process.connection.recv()
            except (EOFError, OSError):  # it may have ended in the middle of a word
                message = None
            yield process, message

    def wake(self) -> None:
        """From any thread: let who listens wait no longer."""
        with contextlib.suppress(BlockingIOError, OSError):  # it rings, or nobody listens any more
            self._rope.send(b"!")

    def end(self, process: EngineProcess) -> None:
        self._selector.unregister(process.connection)
        process.end()

    def close(self) -> None:
        self._selector.close()
        self._bell.close()
        self._rope.close()
        self._server.close()

    def _begin(self, setting: Setting) -> EngineProcess:
        """A GPU is lost to a copy of who has used it; macOS has libraries that bear no copying.

        Ranks need more of transformers than what is copied has.
        """
        may_copy = setting.device == "cpu" and setting.ranks == 1 and sys.platform == "linux"
        return EngineProcess(setting, server=self._server if may_copy else None)
