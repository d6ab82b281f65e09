"""One process that runs a program, with all that it starts, as its supervisor sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import select
import signal
import time
from collections.abc import Callable, Sequence
from typing import Literal

from . import candidate, wire
from .limits import Limits
from .memory import MemoryGroup, MemorySum, others

Status = Literal["ok", "error", "compile", "memory", "timeout", "output"]
"""How a run ended: by itself and well; with an exception, a signal, an exit status or no answer; it
is no Python; out of memory, of time, or over the limit of output."""

WATCH_SECONDS = 0.02
"""From one look at what a program uses to the next. It may use more than its limits for so long."""

_POLL_SECONDS = 0.002  # where the system cannot tell us of a process's end
_DESCRIPTORS = 256  # more than a supervisor ever has
_TICKS = os.sysconf("SC_CLK_TCK")
_HANGUP = getattr(select, "POLLRDHUP", select.POLLHUP)
_EXITS: dict[int, Status] = {
    0: "ok",
    candidate.COMPILE_ERROR: "compile",
    candidate.OUT_OF_MEMORY: "memory",
    -signal.SIGXCPU: "timeout",
}


class SandboxedProcess:
    """A running program.

    become: runs in the child, with the descriptors that it is to keep as 0, 1, 2 ...; never
        returns.
    standard_input: of a script; None opens a session instead, which takes and gives messages.
    is_isolated: whether the caller is the first process of a PID namespace.
    memory: what counts the memory of all its processes; None where nothing can.

    verdict: the limit that it broke, or how it ended, once that is known.
    received: what it wrote and nobody took yet; seconds: wall time so far.
    """

    def __init__(
        self,
        become: Callable[[], object],
        standard_input: int | None,
        limits: Limits,
        is_isolated: bool,
        memory: MemoryGroup | MemorySum | None,
    ):
        self.limits = limits
        self.is_isolated = is_isolated
        self._memory = memory
        self._cpu_before = _reaped_seconds()
        self.verdict: Status | None = None
        self.received = bytearray()
        self._exit: int | None = None
        self._output, output_end = os.pipe()
        self._requests: int | None = None
        request_end: int | None = None
        if standard_input is None:
            self._requests, request_end = _pipe_in()
        self.start = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                if isinstance(memory, MemoryGroup):
                    memory.offer_victim()
                nothing = os.open(os.devnull, os.O_RDWR)
                if standard_input is not None:
                    keep_only([standard_input, output_end, nothing])
                else:
                    assert request_end is not None
                    keep_only([nothing, nothing, nothing, request_end, output_end])
                become()
            finally:
                os._exit(candidate.FAILED)
        os.close(output_end)
        if request_end is not None:
            os.close(request_end)
        os.set_blocking(self._output, False)
        self._handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    def finish(self, listener: int) -> None:
        """Wait until it ends or breaks a limit. Raises Closed when nobody listens any more."""
        self._pump(listener, b"", lambda: False)

    def ask(self, listener: int, request: bytes) -> bytes | None:
        """Send it a message and wait for one; None, with a verdict, when none comes."""
        size: int | None = None

        def is_complete() -> bool:
            nonlocal size
            size = wire.message_size(self.received)
            if size is not None and size > self.limits.answer:
                self.verdict = "output"
            return size is not None and len(self.received) >= size

        if self.verdict is None:
            self._pump(listener, wire.pack_message(request), is_complete)
        if self.verdict is None and is_complete() and size is not None:
            reply = wire.message_body(self.received, size)
            del self.received[:size]
            return reply
        self.end()
        if self.verdict == "ok":  # it ended well, without an answer
            self.verdict = "error"
        return None

    def check_limits(self) -> None:
        """Set the verdict when its time is over or it uses too much memory."""
        self._has_ended()
        if self.verdict is None:
            is_over = self.seconds > self.limits.wall_seconds
            self.verdict = "timeout" if is_over else self._spent_too_much()

    def end(self) -> None:
        """Kill what is left of it, take what it wrote last, and settle the verdict."""
        if self.pid == 0:
            return
        if self._exit is None:
            self._has_ended()
        exits = sweep(self.is_isolated, self.pid if self._exit is None else 0)
        code = exits.get(self.pid, candidate.FAILED) if self._exit is None else self._exit
        self.pid = 0
        with contextlib.suppress(OSError):
            self._read()
        for descriptor in (self._handle, self._output, self._requests):
            if descriptor is not None:
                os.close(descriptor)
        self.verdict = self.verdict or self._spent_too_much() or _EXITS.get(code, "error")

    def _pump(self, listener: int, outgoing: bytes, is_complete: Callable[[], bool]) -> None:
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        poll.register(listener, _HANGUP)
        if self._handle is not None:
            poll.register(self._handle, select.POLLIN)
        view = memoryview(outgoing)
        if view and self._requests is not None:
            poll.register(self._requests, select.POLLOUT)
        pause = _POLL_SECONDS if self._handle is None else WATCH_SECONDS
        watched = time.monotonic()
        while not is_complete() and self.verdict is None:
            events = dict(poll.poll(pause * 1000))
            if listener in events:
                raise wire.Closed("nobody waits for the answer")
            if self._requests in events:
                assert self._requests is not None
                view = _write_some(self._requests, view)
                if not view:
                    poll.unregister(self._requests)
            if self._output in events and not self._read():
                poll.unregister(self._output)
            if (self._handle is None or self._handle in events) and self._has_ended():
                return
            if time.monotonic() - watched >= WATCH_SECONDS:
                watched = time.monotonic()
                self.check_limits()

    def _has_ended(self) -> bool:
        """Reap all processes that have ended; returns whether the first one is among them."""
        with contextlib.suppress(ChildProcessError):
            while self._exit is None:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self.pid:
                    self._exit = os.waitstatus_to_exitcode(status)
        return True

    def _spent_too_much(self) -> Status | None:
        if self._cpu_seconds() > self.limits.cpu_seconds:
            return "timeout"
        if self._memory is not None and self._memory.exceeds(self.limits.memory):
            return "memory"
        return None

    def _cpu_seconds(self) -> float:
        """CPU seconds of all its processes, whether they run, have ended or lost their parent.

        Every process is counted: one that ends is reaped by its parent or by us, with the time of
        what it reaped itself, and no process can leave its children unreaped (see `seccomp.py`).
        """
        running = sum(map(_running_seconds, others())) if self.is_isolated else 0.0
        return _reaped_seconds() - self._cpu_before + running

    def _read(self) -> bool:
        """Take what it has written so far; False at the end of it."""
        while True:
            try:
                part = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return True
            self.received += part
            if not part:
                return False
            if len(self.received) > self.limits.output:
                self.verdict = self.verdict or "output"
                return True


def sweep(is_isolated: bool, leader: int = 0) -> dict[int, int]:
    """Kill and reap every process but this one; exit codes by process.

    leader: without isolation, the process whose group is killed, besides what was adopted from it.
    """
    ended: dict[int, int] = {}
    while True:
        if is_isolated:
            assert os.getpid() == 1  # anywhere else, -1 is everything that the user runs
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for pid in {leader, *_children()} - {0, *ended}:
                _kill_group(pid)
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _reaped_seconds() -> float:
    """CPU seconds of all processes that this one has reaped, and of those that they reaped."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    return reaped.ru_utime + reaped.ru_stime


def _running_seconds(pid: str) -> float:
    """CPU seconds of a process so far, with all that it has reaped; 0 when it is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        after_name = file.read().rpartition(")")[2].split()
        return sum(map(int, after_name[11:15])) / _TICKS
    return 0.0


def _pipe_in() -> tuple[int, int]:
    """A pipe to write requests to, without waiting: its write end and its read end."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    return write_end, read_end


def keep_only(wanted: Sequence[int], most: int = _DESCRIPTORS) -> None:
    """Make `wanted` the descriptors 0, 1, 2 ... and close all others below `most`."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, len(wanted)) for descriptor in wanted]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number)
    os.closerange(len(wanted), most)


def _write_some(descriptor: int, view: memoryview) -> memoryview:
    try:
        return view[os.write(descriptor, view) :]
    except BlockingIOError:
        return view
    except BrokenPipeError:
        return view[:0]
