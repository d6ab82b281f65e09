"""Calls whose cost an untrusted template or pattern decides: a process with limits makes them.

Ten characters of a template can compute for hours within a single operation of Python, which hears
no signal meanwhile; so neither a thread nor a timer in this process could end it. The process is
started by the first call, is asked over pipes, and ends with this one. It guards time and memory
and is no wall: what a template may reach is its own sandbox's affair.

Where the system has them, the limits are its own: CPU seconds by a timer that kills, memory by
RLIMIT_AS (Linux). Elsewhere the time that passes is the only one.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NoReturn, ParamSpec, TypeVar

from sharegen.common.import_path import import_path

SECONDS = 2.0
"""CPU seconds that one call may take."""

MEMORY = 2**30
"""Bytes that one call may take on top of what the process has."""

_PATIENCE = 5  # times as many seconds may pass: a busy machine may need them
_END_SECONDS = 5.0  # for a process that was killed to be gone
_OUT_OF_MEMORY = 77  # exit code
_LENGTH = struct.Struct("<Q")
_PACKAGES = str(Path(__file__).resolve().parents[2])  # the folder that sharegen is imported from
_START = (
    "import sys, json; memory, sys.path[:] = json.loads(sys.argv[1]); "
    "from sharegen.common.confined import serve; serve(memory)"
)

P = ParamSpec("P")
T = TypeVar("T")


class Exceeded(Exception):
    """Which limit ended a call, in words that follow its name: 'takes more than 2 s'."""


def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function(...)` in the process with limits; what it raises is raised here.

    function: of a module's top level; it and all values are pickled. Called within such a call, it
    runs where it is.

    Raises Exceeded.
    """
    return call_for(SECONDS, function, *args, **kwargs)


def call_for(seconds: float, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call as `call` does, with so many seconds of CPU time."""
    if _is_inside:
        return function(*args, **kwargs)
    with _lock:
        result, error = _running().ask((function, args, kwargs, seconds), seconds)
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def is_inside() -> bool:
    """Whether this is the process with limits."""
    return _is_inside


def prepare(function: Callable[..., object]) -> None:
    """Let the process start and import what `function` needs, while this one does other things."""
    if not _is_inside:
        with _lock:
            _running().send((function, None, None, 0))


class _Process:
    """The process and the pipes to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        start = json.dumps([MEMORY, [*import_path(), _PACKAGES]])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-S", "-c", _START, start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process to handle
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._into = self._process.stdin
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        reader.start()  # a pipe cannot be waited for with a timeout on every system

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: tuple[Any, ...], seconds: float) -> tuple[Any, Exception | None]:
        """The result of a call, or what it raised. Raises Exceeded, and the process has ended."""
        reply, patience = None, _PATIENCE * seconds
        try:
            self.send(question)
            reply = self._replies.get(timeout=patience)
        except queue.Empty:
            raise Exceeded(_too_long(patience)) from None
        finally:
            if reply is None:  # also after Ctrl-C: a late reply would be taken for the next call's
                self.end()
        if reply is None:
            raise Exceeded(_reason(self._process.returncode, seconds))
        return pickle.loads(reply)  # type: ignore[no-any-return]

    def send(self, question: tuple[Any, ...]) -> None:
        with contextlib.suppress(BrokenPipeError):  # it ended, which the reader says
            _write(self._into, pickle.dumps(question))

    def end(self) -> None:
        self._process.kill()
        # Without a limit it would wait for a lock that Ctrl-C inside `poll` may have left taken.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def _read(self, source: IO[bytes]) -> None:
        while (reply := _read(source)) is not None:
            self._replies.put(reply)
        self._process.wait()
        self._replies.put(None)


def _reason(code: int, seconds: float) -> str:
    """Why the process ended, from its exit code."""
    if code == _OUT_OF_MEMORY:
        return f"takes more than {MEMORY >> 20:,} MiB of memory"
    if hasattr(signal, "SIGPROF") and code == -signal.SIGPROF:
        return _too_long(seconds)
    return f"ended the process that works it out (exit code {code})"


def _too_long(seconds: float) -> str:
    return f"takes more than {seconds:g} s"


_lock = threading.Lock()
_process: _Process | None = None
_is_inside = False


def _running() -> _Process:
    """Return this process's own: one that was begun before a fork is the parent's."""
    global _process
    if _process is None or _process.owner != os.getpid() or not _process.is_alive:
        _process = _Process()
    return _process


@atexit.register
def stop() -> None:
    """End the process; another call starts another."""
    if _process is not None and _process.owner == os.getpid():
        _process.end()


def _read(source: IO[bytes]) -> bytes | None:
    """Read one message; None where the other side has left."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    [length] = _LENGTH.unpack(head)
    body = source.read(length)
    return body if len(body) == length else None


def _write(target: IO[bytes], message: bytes) -> None:
    target.write(_LENGTH.pack(len(message)) + message)
    target.flush()


def serve(memory: int) -> NoReturn:
    """The process itself: answers calls, each within the limits, until nobody asks."""
    global _is_inside
    _is_inside = True
    questions, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print is no reply
    while (question := _read(questions)) is not None:
        function, args, kwargs, seconds = pickle.loads(question)  # imports, too, which do not count
        if args is None:
            continue
        result, raised = None, None
        _limit(seconds, memory)
        try:
            result = function(*args, **kwargs)
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        except Exception as error:  # for the caller, whatever it is
            raised = error
        _limit(0, 0)
        _write(replies, pickle.dumps((result, raised)))
    sys.exit()


def _limit(seconds: float, memory: int) -> None:
    """Limit CPU seconds, and bytes on top of those in use, from here on; 0 removes a limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)
    if sys.platform == "linux":
        import resource

        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = size + memory if memory else hard
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
