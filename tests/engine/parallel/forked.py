"""Workers that are there at once: forked from a process that has imported everything already.

What they do from then on is what any worker does. Starting one as users do takes seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from typing import Any

from sharegen.engine.parallel.launch import Process, Processes
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.request import Completion

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__ + "_imports"])


def _serve(connection: Connection[Any, Any]) -> None:
    from sharegen.engine.parallel.worker import serve

    serve(connection)


def _starve(connection: Connection[Any, Any]) -> None:
    """One whose third step finds no memory."""
    import torch

    from sharegen.engine.engine import Engine

    step, steps = Engine.step, itertools.count(1)

    def starving(self: Engine) -> list[Completion]:
        if next(steps) == 3:
            torch.empty(1 << 50)
        return step(self)

    Engine.step = starving  # type: ignore[method-assign]
    _serve(connection)


class _Popen:
    """A process of multiprocessing as one of subprocess."""

    def __init__(self, serve: Callable[..., None], theirs: Connection[Any, Any]) -> None:
        self._process = _CONTEXT.Process(target=serve, args=[theirs], daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.kill = self._process.kill

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("a worker", timeout)
        return self._process.exitcode


class Forked(Process):
    serve = staticmethod(_serve)

    def __init__(self, setting: Setting) -> None:
        self.connection, theirs = Pipe()
        with theirs:
            self._process = _Popen(self.serve, theirs)  # type: ignore[assignment]
        with contextlib.suppress(ConnectionError):
            self.connection.send(setting)


class Starved(Forked):
    serve = staticmethod(_starve)


def forked() -> Processes:
    """A place for such workers."""
    return Processes(Forked)
