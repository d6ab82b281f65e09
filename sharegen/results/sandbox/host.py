"""The outer half: starts the warmed parent, hands it programs, reads what they answer.

This is the process that knows expected values. All it ever takes from inside is a status and
bytes, with a limit on their size and on how long it waits for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from sharegen.errors import SharegenError
from sharegen.results.sandbox import cgroup, system, wire
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.process import WATCH_SECONDS, Status
from sharegen.results.sandbox.system import Isolation

_START_SECONDS = 60
_GRACE_SECONDS = 10
_NO_KEYWORDS: dict[str, Any] = {"d": []}


class SandboxError(SharegenError):
    """No sandbox could be started, or it broke down."""


@dataclass(frozen=True)
class SandboxReply:
    """What came of one script or one message.

    output: what it wrote, in bytes, only with status "ok"; seconds: wall time since its start.
    """

    status: Status
    output: bytes
    seconds: float


class ProgramSession:
    """One program in a sandbox of its own, until the `with` block of `Sandbox.program` ends."""

    def __init__(self, channel: socket.socket, limits: Limits):
        self._channel = channel
        self._limits = limits
        self._lost: Status | None = None

    @property
    def is_lost(self) -> bool:
        """Whether its supervisor is gone, so that it answers nothing any more."""
        return self._lost is not None

    def run_script(self, standard_input: str) -> SandboxReply:
        """Run it once, from its first line, on this input."""
        self._send({"op": "script"}, standard_input.encode(errors="replace"))
        return self._receive()

    def open_session(self) -> None:
        """Run its definitions and keep it for `ask`."""
        self._send({"op": "open"})

    def ask(self, message: Any) -> SandboxReply:
        """Send a JSON message to the open session; its reply, in JSON, is the output."""
        self._send({"op": "ask"}, json.dumps(message).encode())
        return self._receive()

    def close_session(self) -> None:
        """End the session and all its processes."""
        self._send({"op": "close"})

    def call(self, name: str, args: Any) -> SandboxReply:
        """Call a function in a process of its own; args: the encoded list of them."""
        self.open_session()
        answer = self.ask({"name": name, "args": args, "kwargs": _NO_KEYWORDS})
        self.close_session()
        return answer

    def _send(self, order: dict[str, Any], payload: bytes = b"") -> None:
        if self._lost is None:
            try:
                wire.send(self._channel.fileno(), order, payload)
            except OSError as error:
                self._lose(error)

    def _receive(self) -> SandboxReply:
        if self._lost is None:
            try:
                header, output = wire.receive(self._channel.fileno())
                return SandboxReply(header["status"], output, header["seconds"])
            except (wire.Closed, OSError) as error:
                self._lose(error)
        assert self._lost is not None
        return SandboxReply(self._lost, b"", self._limits.wall_seconds)

    def _lose(self, error: Exception) -> None:
        """Note that the supervisor is gone or too slow, which never counts as a verdict."""
        self._lost = "timeout" if isinstance(error, BlockingIOError) else "error"


class Sandbox:
    """A warmed parent in isolation, which runs one program at a time.

    isolation: "bubblewrap", "namespaces", or "none" for the user who insists (see
        `choose_isolation`). Raises SandboxError when it cannot be had.

    is_counted: whether a memory cgroup counts what programs hold.
    """

    is_counted: bool

    def __init__(self, isolation: Isolation, limits: Limits | None = None):
        self.isolation = isolation
        self.limits = limits or Limits()
        self._start()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @contextlib.contextmanager
    def program(
        self,
        source: str,
        prelude: str = "",
        *,
        limits: Limits | None = None,
        checks: bool = False,
    ) -> Iterator[ProgramSession]:
        """A program in a sandbox of its own: nothing of it is left after the block.

        prelude: runs before it, in the same names; limits: instead of the sandbox's.
        checks: sessions run assertions that come as messages (see `checker.py`), no program.
        """
        limits = limits or self.limits
        channel, theirs = socket.socketpair()
        with channel:
            with theirs:
                _set_timeout(channel, limits.wall_seconds + _GRACE_SECONDS)
                self._hand_over(theirs)
            program = ProgramSession(channel, limits)
            job = {"limits": dataclasses.asdict(limits), "prelude": prelude, "checks": checks}
            program._send(job, source.encode(errors="replace"))
            try:
                yield program
            finally:
                channel.close()
                self._await_end()

    def close(self) -> None:
        """End the warmed parent, and with it whatever runs."""
        self._control.close()
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        self._remove_group()

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        _set_timeout(self._control, _START_SECONDS)
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._group = cgroup.create() if self.isolation != "none" else None
        counted_in = self._group.descriptors if self._group is not None else []
        with theirs:
            descriptors = [theirs.fileno(), *counted_in]
            try:
                plan = {"isolation": self.isolation, "binds": system.binds()}
                self._process = subprocess.Popen(
                    system.command(self.isolation, descriptors),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    env=system.environment(),
                    pass_fds=descriptors,
                    start_new_session=True,
                    cwd="/",
                )
            except OSError as error:
                self._remove_group()
                raise SandboxError(f"{self.isolation}: {error.strerror}") from error
        if self._group is not None:
            self._group.close()
        try:
            wire.send(self._control.fileno(), plan)
            answer, _ = wire.receive(self._control.fileno())
            reason = answer.get("error")
            self.is_counted = answer.get("is_counted", False)
        except (wire.Closed, OSError):
            reason = self._last_words() or "it ended without a word"
        if reason:
            self.close()
            raise SandboxError(f"{self.isolation}: {reason}")
        _set_timeout(self._control, _GRACE_SECONDS)

    def _remove_group(self) -> None:
        if self._group is not None:
            self._group.remove()

    def _hand_over(self, channel: socket.socket) -> None:
        try:
            socket.send_fds(self._control, [b"."], [channel.fileno()])
        except OSError as error:
            raise SandboxError(f"{self.isolation}: it broke down: {self._last_words()}") from error

    def _await_end(self) -> None:
        """Wait until the program's processes and files are gone; start anew if they are not."""
        with contextlib.suppress(OSError):
            if os.read(self._control.fileno(), 1):
                return
        self._process.kill()
        self.close()
        self._start()

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""


KINDS: tuple[Isolation, ...] = ("bubblewrap", "namespaces")
"""The ways to isolate, best first."""


def choose_isolation(unsafe: bool = False) -> Isolation:
    """The best isolation that works here: bubblewrap, else namespaces of our own.

    unsafe: go on without any where none works. Raises SandboxError otherwise, with the reasons.
    """
    found = next((kind for kind in KINDS if fault_of(kind) is None), None)
    if found is not None:
        return found
    if unsafe:
        return "none"
    raise SandboxError(
        f"generated programs cannot be isolated on this system ("
        f"{'; '.join(str(fault_of(kind)) for kind in KINDS)}): install bubblewrap or allow "
        "unprivileged user namespaces; --unsafe-execution runs them as you"
    )


def fault_of(kind: Isolation) -> str | None:
    """Why this isolation does not work here, found by a first program; None if it works."""
    return _trial(kind).fault


def memory_in_words(isolation: Isolation) -> str:
    """What enforces the memory limit of programs here, in words for the user."""
    if isolation == "none":
        return "memory is limited for each process alone"
    if _trial(isolation).is_counted:
        return "memory is limited by a cgroup"
    return (
        "no memory cgroup can be had here, so memory is looked at "
        f"{round(1 / WATCH_SECONDS)} times a second, and programs cannot share anonymous memory"
    )


@dataclass(frozen=True)
class _Trial:
    fault: str | None
    is_counted: bool = False


@functools.cache
def _trial(kind: Isolation) -> _Trial:
    """A first program in this isolation."""
    if not sys.platform.startswith("linux"):
        return _Trial(f"{kind}: {sys.platform} has no namespaces")
    if kind == "bubblewrap" and shutil.which("bwrap") is None:
        return _Trial("bubblewrap: not installed")
    try:
        with Sandbox(kind) as sandbox, sandbox.program("print(input())") as program:
            answer = program.run_script("here")
            is_counted = sandbox.is_counted
    except SandboxError as error:
        return _Trial(str(error))
    if answer.output == b"here\n":
        return _Trial(None, is_counted)
    return _Trial(f"{kind}: a first program ended with {answer.status}")


def _set_timeout(sock: socket.socket, seconds: float) -> None:
    """A limit on each wait, of the kind that plain reads and writes of the descriptor keep."""
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds) + 1, 0))
