"""Where the time of a start goes, from the command to its first sample, by part.

There is one clock a process. What no part claims is counted as reading the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

IMPORTS = "imports"
READING = "reading the job"
TOKENISING = "tokenising"
WEIGHTS = "weights"
COMPILING = "compiling"
WARMING_UP = "warming up"
WORKERS = "starting workers"
FIRST_SAMPLE = "first sample"

PARTS = (
    IMPORTS, READING, TOKENISING, WEIGHTS, COMPILING, WARMING_UP, WORKERS, FIRST_SAMPLE,
)  # fmt: skip
"""In the order in which they are shown."""


class StartClock:
    """Counts wall seconds by part. on_part is told which part begins, for who shows it."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.on_part: Callable[[str], None] | None = None
        self._now = now
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @property
    def runs(self) -> bool:
        """Whether a start is being measured as a whole."""
        return bool(self._open)

    def begin(self) -> None:
        """Measure a start from here on; one that is measured already goes on."""
        if not self.runs:
            self._seconds = {}
            self._enter(READING)

    def end(self) -> None:
        """The start is over, with whatever part was open."""
        while self._open:
            self._leave()
        self.on_part = None

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside, or in the function, as this part alone."""
        depth = len(self._open)
        self._enter(name)
        try:
            yield
        finally:
            while len(self._open) > depth:  # none, if the start has ended meanwhile
                self._leave()

    def wait_for_first_sample(self) -> None:
        """From here to `end` there is nothing left to do but to draw."""
        if self.runs:
            self._enter(FIRST_SAMPLE)

    def seconds(self) -> dict[str, float]:
        """Seconds by part until now."""
        self._count()
        return {name: self._seconds[name] for name in PARTS if name in self._seconds}

    def _enter(self, name: str) -> None:
        self._count()
        self._open.append(name)
        if self.on_part is not None:
            self.on_part(name)

    def _leave(self) -> None:
        self._count()
        self._open.pop()
        if self._open and self.on_part is not None:
            self.on_part(self._open[-1])

    def _count(self) -> None:
        now = self._now()
        if self._open:
            name = self._open[-1]
            self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now


START = StartClock()
"""This process's."""


def with_engine(driver: Mapping[str, float], engine: Mapping[str, float]) -> dict[str, float]:
    """The parts of a start whose engines are in processes of their own.

    engine: the parts of the slowest, which the driver waited for as starting workers. What of them
    was over before it waited took no time of the start: it went on beside the driver's own parts.
    """
    parts = {name: driver.get(name, 0.0) for name in PARTS}
    for name in reversed(PARTS):
        if name != WORKERS:
            waited = min(parts[WORKERS], engine.get(name, 0.0))
            parts[name] += waited
            parts[WORKERS] -= waited
    return {name: seconds for name, seconds in parts.items() if seconds}
