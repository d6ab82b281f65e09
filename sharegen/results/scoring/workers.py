"""Many programs on all cores: one process a core, each with a sandbox of its own.

The workers are fresh interpreters, not forks, so that nothing of this process is in them, and none
of them imports from the current folder first: they know what a program has to answer. They are
handed a problem with a few of its programs at a time and send back one score a program. Each stays
on one core, with all that it runs, so that no program takes time from another.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TypeAlias

from sharegen.common.import_path import import_path
from sharegen.common.interpreter import start_interpreter
from sharegen.common.program_tests import ProgramProblem
from sharegen.results.sandbox.host import SandboxError
from sharegen.results.sandbox.limits import Limits
from sharegen.results.sandbox.system import Isolation
from sharegen.results.scoring.score import Score, Scorer

Sample: TypeAlias = "tuple[str, int]"
"""Problem id and sample index."""

_START = "import sys; from sharegen.results.scoring.workers import work; work(int(sys.argv[1]))"

_PARCEL = 8  # programs a worker gets at a time: few, so that all cores finish together


@dataclass(frozen=True)
class Task:
    """Programs of one problem, as (sample index, completion)."""

    problem_id: str
    problem: ProgramProblem
    completions: Sequence[tuple[int, str]]


def _cores() -> list[int]:
    """Numbers of the available cores, in the order to use them: in none that is known, but the
    second halves of those that run two threads come last."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    cores = list(os.sched_getaffinity(0))
    random.shuffle(cores)  # two commands at a time should not take the same ones
    return sorted(cores, key=_rank)


def _rank(core: int) -> int:
    """Which of the threads of its core this one is."""
    try:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        first = siblings.read_text().replace("-", ",").split(",")[0]
        return int(int(first) != core)
    except (OSError, ValueError):
        return 0


class Crew:
    """Processes that score programs, as many at a time as `size`; they start as they are needed.

    Close it, and they end with what they run. Putting and taking raise SandboxError when one of
    them cannot have its sandbox or dies.
    """

    def __init__(self, isolation: Isolation, limits: Limits, size: int) -> None:
        self._setting = (isolation, limits)
        self._size = size
        self._cores = _cores()
        self._members: dict[Connection, subprocess.Popen[bytes]] = {}
        self._waiting: dict[Connection, deque[Sample]] = {}  # who works, and on what
        self._parcels: deque[Task] = deque()

    @property
    def has_room(self) -> bool:
        """Whether something more would be begun at once."""
        return not self._parcels and len(self._waiting) < self._size

    @property
    def is_busy(self) -> bool:
        return bool(self._waiting)

    def put(self, task: Task) -> None:
        """Programs to score."""
        self._parcels.extend(_parcels(task))
        self._hand_out()

    def take(self, timeout: float | None = None) -> Iterator[tuple[Sample, Score]]:
        """Scores that have come; waits for one, or so many seconds at most."""
        for connection in wait(list(self._waiting), timeout):
            assert isinstance(connection, Connection)
            yield self._waiting[connection].popleft(), _receive(connection)
            if not self._waiting[connection]:
                del self._waiting[connection]
        self._hand_out()

    def close(self) -> None:
        for connection, process in self._members.items():
            connection.close()
            process.terminate()
        for process in self._members.values():
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        self._members.clear()

    def _hand_out(self) -> None:
        while self._parcels and len(self._waiting) < self._size:
            idle = next((c for c in self._members if c not in self._waiting), None)
            connection = self._start() if idle is None else idle
            self._waiting[connection] = _hand_over(connection, self._parcels.popleft())

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        core = self._cores[len(self._members) % len(self._cores)] if self._cores else None
        with theirs:
            process = start_interpreter(["-c", _START], theirs.fileno(), _folders())
        connection = Connection(ours.detach())
        self._members[connection] = process
        with contextlib.suppress(OSError):  # it died, which the next message says
            connection.send((*self._setting, core))
        return connection


def _folders() -> list[str]:
    """Where a worker imports from: not from the current folder, unless we are there ourselves."""
    package = str(Path(__file__).resolve().parents[2])
    here = os.path.realpath(os.curdir)
    return [*(each for each in import_path() if os.path.realpath(each) != here), package]


def score_all(
    tasks: Iterator[Task], isolation: Isolation, limits: Limits, workers: int
) -> Generator[tuple[Sample, Score], None, None]:
    """Score every program, in whatever order they finish.

    Closing the generator early ends the workers and what they run. Raises SandboxError when a
    worker cannot have its sandbox or dies.
    """
    parcels = (parcel for task in tasks for parcel in _parcels(task))
    with contextlib.closing(Crew(isolation, limits, workers)) as crew:
        while True:
            while crew.has_room and (parcel := next(parcels, None)) is not None:
                crew.put(parcel)
            if not crew.is_busy:
                return
            yield from crew.take()


def _parcels(task: Task) -> Iterator[Task]:
    for start in range(0, len(task.completions), _PARCEL):
        part = task.completions[start : start + _PARCEL]
        yield Task(task.problem_id, task.problem, part)


def _hand_over(connection: Connection, parcel: Task) -> deque[Sample]:
    try:
        connection.send(parcel)
    except OSError as error:
        raise SandboxError("a process that scores programs died") from error
    return deque((parcel.problem_id, index) for index, _ in parcel.completions)


def _receive(connection: Connection) -> Score:
    try:
        said = connection.recv()
    except (EOFError, OSError) as error:
        raise SandboxError("a process that scores programs died") from error
    if isinstance(said, str):
        raise SandboxError(said)
    assert isinstance(said, Score)
    return said


def work(descriptor: int) -> None:
    """Score, in a worker, what comes on the descriptor until nothing more does, on one core."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection = Connection(descriptor)
    try:
        isolation, limits, core = connection.recv()
        if core is not None:
            with contextlib.suppress(OSError):  # it was taken from us meanwhile
                os.sched_setaffinity(0, {core})
        _score(connection, isolation, limits)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except SandboxError as error:
        connection.send(str(error))


def _score(connection: Connection, isolation: Isolation, limits: Limits) -> None:
    with Scorer(isolation, limits) as scorer:
        try:
            while True:
                task = connection.recv()
                for _, completion in task.completions:
                    connection.send(scorer.score(task.problem, completion))
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave(*_: object) -> None:
    """End, and close the sandbox on the way: whole, whatever else comes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit()


def _end_with_parent() -> None:
    """Do not outlive the command, however it ends; the sandbox ends with us."""
    with contextlib.suppress(OSError):
        os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)
