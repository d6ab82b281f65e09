"""`--stop-when` while a job runs: every sample that comes may decide its problem."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from sharegen.job.judging import Judge
from sharegen.results.journal.record import Record
from sharegen.results.stopping.deciding import Deciding
from sharegen.results.stopping.stopped import ProblemKey, Stopped
from sharegen.workload.problem import Problem


class Cancelling(Protocol):
    """What draws the samples (`Engine` and `Driver` do)."""

    def call(self, key: int, required: int) -> None: ...

    def cancel(self, key: int) -> list[int]: ...


class Stopping:
    """The problems of a job under its rule, and the engine that learns what they still require.

    stopped: with what is on record already. judge: of programs; answers judge themselves.
    """

    def __init__(self, stopped: Stopped, engine: Cancelling, judge: Judge | None = None) -> None:
        self._stopped = stopped
        self._engine = engine
        self._judge = judge
        self._keys: dict[ProblemKey, int] = {}

    def deciding(self, problem: Problem, key: int) -> Deciding:
        """How far a problem is; key: of its request."""
        place = (problem.id, problem.prompt_hash)
        self._keys[place] = key
        return self._stopped.deciding(place)

    def note(self, record: Record) -> Iterator[tuple[int, int]]:
        """A sample has come; request keys of problems that are decided now.

        With each the number of its samples that are not drawn for it.
        """
        if self._judge is None or not record.is_drawn:
            yield from self._read(record)
            return
        self._judge.put(record)
        for judged, is_right in self._judge.take():
            yield from self._read(judged, is_right)

    def finish(self) -> None:
        """All is drawn: wait for the verdicts that are still to come."""
        if self._judge is not None:
            for judged, is_right in self._judge.take(wait=True):
                self._stopped.note(judged, is_right)

    def _read(self, record: Record, right: bool | None = None) -> Iterator[tuple[int, int]]:
        if not self._stopped.note(record, right):
            return
        deciding = self._stopped.problem(record)
        key = self._keys[record.problem_id, record.prompt_hash]
        if deciding.is_decided:
            yield key, len(self._engine.cancel(key))
        else:
            self._engine.call(key, deciding.required)
