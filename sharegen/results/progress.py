"""How far a job is, on stderr: a live line on a terminal, now and then a plain one elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

_PLAIN_SECONDS = 10.0
_REFRESHES_PER_SECOND = 4
_NAMED = 4  # workers that are idle; of more it is said how many they are


class Status(Protocol):
    """What the engine says about itself (`EngineStats` does); of several, which have no work."""

    generated_tokens: int
    running: int
    blocks_used: int
    blocks_total: int
    idle: list[int]


class Progress:
    """Samples and problems done out of how many, with the engine's state.

    samples, problems: in this run, bar what an earlier one finished; samples=None where nobody
    knows how many there will be. Use as a context manager; `advance` after every completion, and
    `save` for every problem that needs no more of its samples.

    saved: samples that will not be drawn.
    """

    def __init__(
        self, status: Status, samples: int | None, problems: int | None, console: Console | None
    ) -> None:
        self.status = status
        self.samples = samples
        self.problems = problems
        self.samples_done = 0
        self.problems_done = 0
        self.saved = 0
        self._settled = 0  # samples of the problems that are decided, drawn or not
        self._console = console or Console(stderr=True)
        self._started = self._said = time.monotonic()
        self._before = status.generated_tokens
        self._live: RichProgress | None = None

    def __enter__(self) -> Progress:
        self._started = self._said = time.monotonic()
        if self._console.is_terminal:
            self._live = _TwoLines(
                SpinnerColumn(),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                console=self._console,
                refresh_per_second=_REFRESHES_PER_SECOND,
                expand=True,
            )
            self._live.describe = self.describe
            self._live.add_task("samples", total=self.samples)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self.samples_done:
            self._say()

    def advance(self, problem_done: bool) -> None:
        """One more sample is done, and with it its problem or not."""
        self.samples_done += 1
        self.problems_done += problem_done
        if self._live is not None:
            self._live.advance(self._live.task_ids[0])
        elif time.monotonic() - self._said >= _PLAIN_SECONDS:
            self._say()

    def save(self, asked: int, saved: int) -> None:
        """A problem of which so many samples were asked is decided, and so many are not drawn."""
        self._settled += asked
        self.saved += saved
        self.problems_done += 1
        if self._live is not None:
            self._live.update(self._live.task_ids[0], total=self.expected)

    @property
    def expected(self) -> int | None:
        """Samples that will be drawn, if the other problems are decided like those so far."""
        if self.samples is None or not self._settled:
            return self.samples
        still = self.samples - self._settled
        return round(self.samples - self.saved - still * self.saved / self._settled)

    def describe(self) -> str:
        """The state in one line."""
        seconds = time.monotonic() - self._started
        tokens = self.status.generated_tokens - self._before
        parts = [f"{_of(self.samples_done, self.samples)} samples"]
        if self._settled:
            parts.append(f"{self.saved:,} saved, about {self.expected:,} expected")
        if self.problems is not None:
            parts.append(f"{_of(self.problems_done, self.problems)} problems")
        parts.append(f"{tokens / seconds if seconds else 0:,.0f} tokens/s")
        parts.append(f"{self.status.running} running")
        if self.status.idle:
            parts.append(_idle(self.status.idle))
        if self.status.blocks_total:
            parts.append(f"KV {self.status.blocks_used / self.status.blocks_total:.0%}")
        left = self.seconds_left()
        if left is not None:
            parts.append(f"{timedelta(seconds=round(left))} left")
        return " · ".join(parts)

    def seconds_left(self) -> float | None:
        """At the pace so far; None before anything runs, or without an end.

        What runs counts as half done: a wide batch ends together, long after its first sample.
        """
        samples = self.expected
        if samples is None:
            return None
        done = min(samples, self.samples_done + self.status.running / 2)
        if not done:
            return None
        return (time.monotonic() - self._started) / done * (samples - done)

    def _say(self) -> None:
        self._said = time.monotonic()
        print(f"sharegen: {self.describe()}", file=self._console.file, flush=True)


class _TwoLines(RichProgress):
    """The bar and, below it, the state as it is at each refresh: it lives while no sample ends."""

    describe: Callable[[], str] = staticmethod(str)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.describe(), style="dim")


def _of(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,}/{total:,}"


def _idle(workers: list[int]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]} idle"
    if len(workers) > _NAMED:
        return f"{len(workers)} workers idle"
    return f"workers {', '.join(map(str, workers))} idle"
