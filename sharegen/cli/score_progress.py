"""How far scoring is, on stderr: a bar on a terminal, now and then a plain line elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from sharegen.results.scoring.score import Score

_PLAIN_SECONDS = 10.0


class ScoreProgress:
    """Programs scored out of how many, how many of them passed, and the pace."""

    def __init__(self, console: Console):
        self._console = console
        self._total = self._done = self._before = self._passed = 0
        self._started = self._said = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> ScoreProgress:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._done > self._before:
            self._say()

    def plan(self, programs: int, done: int) -> None:
        """There are so many programs, of which so many have a verdict already."""
        self._total, self._done, self._before = programs, done, done
        self._started = self._said = time.monotonic()
        if self._console.is_terminal and done < programs:
            self._bar = Progress(
                SpinnerColumn(),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=self._console,
                expand=True,
            )
            self._bar.add_task(self._pace(), total=programs, completed=done)
            self._bar.start()

    def advance(self, score: Score) -> None:
        """One more program has a verdict."""
        self._done += 1
        self._passed += score.passed
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], advance=1, description=self._pace())
        elif time.monotonic() - self._said >= _PLAIN_SECONDS:
            self._say()

    def _pace(self) -> str:
        seconds = time.monotonic() - self._started
        new = self._done - self._before
        pace = new / seconds if seconds > 0 else 0.0
        return f"{self._passed:,} of {new:,} passed · {pace:,.0f} programs/s"

    def _say(self) -> None:
        self._said = time.monotonic()
        line = f"sharegen: {self._done:,}/{self._total:,} programs · {self._pace()}"
        print(line, file=self._console.file, flush=True)
