"""How far scoring is, on stderr."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

from sharegen.results.screen.bar import Bar, fitted

if TYPE_CHECKING:
    from rich.console import Console

    from sharegen.results.scoring.score import Score


class ScoreProgress:
    """Programs scored out of how many, how many of them passed, and the pace."""

    def __init__(self, console: Console):
        self._console = console
        self._total = self._done = self._before = self._passed = 0
        self._started = time.monotonic()
        self._bar: Bar | None = None

    def __enter__(self) -> ScoreProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop(has_news=self._done > self._before)

    def plan(self, programs: int, done: int) -> None:
        """There are so many programs, of which so many have a verdict already."""
        self._total, self._done, self._before = programs, done, done
        self._started = time.monotonic()
        if done < programs:
            self._bar = Bar(self, self._console)
            self._bar.start()

    def advance(self, score: Score) -> None:
        """Note that one more program has a verdict."""
        self._done += 1
        self._passed += score.passed
        if self._bar is not None:
            self._bar.tick()

    def share(self) -> float:
        """The part of the programs that has a verdict."""
        return self._done / self._total if self._total else 1.0

    def describe(self, width: int | None = None) -> str:
        """Return the state in one line; of that width, without what matters least."""
        seconds = time.monotonic() - self._started
        new = self._done - self._before
        pace = new / seconds if seconds > 0 else 0.0
        parts = [
            (0, f"{self._done:,}/{self._total:,} programs"),
            (1, f"{self._passed:,} of {new:,} passed"),
            (3, f"{pace:,.0f} programs/s"),
        ]
        if pace:
            left = timedelta(seconds=round((self._total - self._done) / pace))
            parts.append((2, f"{left} left"))
        return fitted(parts, width)
