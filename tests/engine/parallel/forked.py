"""Workers that are there at once: forked from a process that has imported everything already.

What they do from then on is what any worker does. Starting one as users do takes seconds.
"""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from sharegen.engine.core.request import Completion
from sharegen.engine.parallel.copies import ForkServer
from sharegen.engine.parallel.launch import EngineProcess, Processes

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__ + "_imports"])


def _serve(connection: Connection[Any, Any]) -> None:
    from sharegen.engine.parallel.line import Line
    from sharegen.engine.parallel.worker import serve

    serve(Line(connection))


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


def _hang(connection: Connection[Any, Any]) -> None:
    """One whose third step never ends."""
    import time

    from sharegen.engine.engine import Engine

    step, steps = Engine.step, itertools.count(1)

    def hanging(self: Engine) -> list[Completion]:
        if next(steps) == 3:
            time.sleep(600)
        return step(self)

    Engine.step = hanging  # type: ignore[method-assign]
    _serve(connection)


class _Popen:
    """A process of multiprocessing as one of subprocess."""

    def __init__(self, serve: Callable[..., None], theirs: Connection[Any, Any]) -> None:
        self._process = CONTEXT.Process(target=serve, args=[theirs], daemon=True)
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


def _follow(connection: Connection[Any, Any]) -> None:
    from sharegen.engine.parallel.line import Line
    from sharegen.engine.parallel.rank import serve

    serve(Line(connection))


def _follow_starving(connection: Connection[Any, Any]) -> None:
    """A rank whose third step finds no memory."""

    def starve(runner: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    _with_third_step(connection, starve)


def _follow_into_death(connection: Connection[Any, Any]) -> None:
    """A rank that is killed while the model is tried, in the midst of its forward."""
    import os
    import signal

    from sharegen.engine.model import probe

    def die(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    probe._record = die  # type: ignore[assignment]
    _follow(connection)


def _follow_in_want(connection: Connection[Any, Any]) -> None:
    """A rank that says before its first two batches of prompts that there is no memory."""
    from sharegen.engine.execute import room

    has_room, asked = room.has_room, itertools.count(1)
    room.has_room = lambda *step: next(asked) > 2 and has_room(*step)
    _follow(connection)


def _follow_astray(connection: Connection[Any, Any]) -> None:
    """A rank that begins its third step with other tokens than were drawn."""
    _with_third_step(connection, lambda runner: runner.tokens.add_(1))


def _with_third_step(connection: Connection[Any, Any], change: Callable[[Any], object]) -> None:
    from sharegen.engine.execute.runner import Runner

    run, steps = Runner.run, itertools.count(1)

    def changed(self: Any, batch: Any) -> Any:
        if next(steps) == 3:
            change(self)
        return run(self, batch)

    Runner.run = changed  # type: ignore[method-assign]
    _follow(connection)


class Forked(EngineProcess):
    serve = staticmethod(_serve)

    def _begin(self, theirs: Connection[Any, Any], *_: object) -> Any:
        return _Popen(self.serve, theirs)


class Starved(Forked):
    serve = staticmethod(_starve)


class Hanging(Forked):
    serve = staticmethod(_hang)


class Rank(Forked):
    serve = staticmethod(_follow)


class StarvingRank(Forked):
    serve = staticmethod(_follow_starving)


class DyingRank(Forked):
    serve = staticmethod(_follow_into_death)


class RankInWant(Forked):
    serve = staticmethod(_follow_in_want)


class RankAstray(Forked):
    serve = staticmethod(_follow_astray)


def forked(server: ForkServer | None = None) -> Processes:
    """A place for such workers, which are no copies of a job's own server."""
    return Processes(Forked)
