"""The first process of a program's PID namespace: starts its runs, watches them, ends them.

It has the program and its inputs but no expected value, so there is nothing in it worth reading.
It keeps the capabilities that the program's processes gave up; therefore they cannot trace it, and
as the first process of the namespace it cannot be killed from within.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import tempfile
from typing import IO

from . import candidate, checker, tree, wire
from . import namespaces as ns
from .confine import confine
from .limits import Limits
from .memory import MemoryGroup, MemorySum
from .process import WATCH_SECONDS, SandboxedProcess, sweep

_OTHERS = 3
"""Processes of the user namespace that are not the program's: two of the server, and this one."""


class Supervisor:
    """Serves one program on a channel; then everything of it is gone.

    The first frame is {"limits", "prelude", "checks"} with the program as payload; with "checks",
    there is none and sessions run a dataset's assertions (see `checker.py`). Then each order:
    {"op": "script"} runs it with the payload as its standard input; {"op": "open"} starts a
    session, {"op": "ask"} sends it the payload as a message and waits for one, {"op": "close"}
    ends it. Script and ask are answered by {"status", "seconds"} with what the program wrote as
    payload.

    group: the memory cgroup that this process is in.
    """

    def __init__(self, channel: int, is_isolated: bool, group: MemoryGroup | None):
        self.channel = channel
        self.is_isolated = is_isolated
        if is_isolated:
            ns.die_with_parent()
            # With a handler of Python's this one signal would end it, whoever sends it.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        job, source = wire.receive(channel)
        self.limits = Limits(**job["limits"])
        self.source = source.decode(errors="replace")
        self.prelude: str = job["prelude"]
        self.checks: bool = job["checks"]
        self.session: SandboxedProcess | None = None
        self.folder: str | None = None
        self.memory: MemoryGroup | MemorySum | None = None
        if is_isolated:
            if group is not None:
                group.begin(self.limits)
            self.memory = group or MemorySum()
            ns.own_proc_files(False)
            tree.make_private(self.limits.disk)
            return
        self.folder = tempfile.mkdtemp(prefix="sharegen-")
        os.chdir(self.folder)
        with contextlib.suppress(OSError, AttributeError):  # not on every system
            ns.become_subreaper()

    def serve(self) -> None:
        """Obey until the channel is closed."""
        try:
            while True:
                self._watch_session()
                order, payload = wire.receive(self.channel)
                self._obey(order["op"], payload)
        finally:
            sweep(self.is_isolated, self.session.pid if self.session else 0)
            if self.folder is not None:
                os.chdir("/")
                shutil.rmtree(self.folder, ignore_errors=True)

    def _obey(self, op: str, payload: bytes) -> None:
        if op == "script":
            with _file_of(payload) as file:
                run = self._start(file.fileno())
            try:
                run.finish(self.channel)
            finally:
                run.end()
            self._answer(run, bytes(run.received))
        elif op == "open":
            self.session = self._start(None)
        elif op == "ask":
            assert self.session is not None
            reply = self.session.ask(self.channel, payload)
            self._answer(self.session, reply or b"")
        else:
            assert op == "close" and self.session is not None
            self.session.end()
            self.session = None

    def _answer(self, run: SandboxedProcess, payload: bytes) -> None:
        status = run.verdict or "ok"
        header = {"status": status, "seconds": run.seconds}
        wire.send(self.channel, header, payload if status == "ok" else b"")

    def _start(self, standard_input: int | None) -> SandboxedProcess:
        def become_program() -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            is_counted = isinstance(self.memory, MemoryGroup)
            confine(self.limits, _OTHERS, self.is_isolated, is_counted)
            if standard_input is not None:
                candidate.run_script(self.source, self.prelude)
            elif self.checks:
                checker.serve_check()
            else:
                candidate.serve_calls(self.source, self.prelude)

        return SandboxedProcess(
            become_program, standard_input, self.limits, self.is_isolated, self.memory
        )

    def _watch_session(self) -> None:
        """While a session waits for its next message, its limits hold on."""
        run = self.session
        while run is not None and run.verdict is None:
            if select.select([self.channel], [], [], WATCH_SECONDS)[0]:
                return
            run.check_limits()
            if run.verdict is not None:
                run.end()


def _file_of(data: bytes) -> IO[bytes]:
    """An open file without a name that holds `data`, at its beginning."""
    file: IO[bytes]
    if hasattr(os, "memfd_create"):
        file = open(os.memfd_create("input"), "r+b", buffering=0)  # noqa: SIM115
    else:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
    file.seek(0)
    return file
