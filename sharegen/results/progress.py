"""How far a job is, on stderr: a bar in a terminal or a notebook, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import IO, Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

_PLAIN_SECONDS = 10.0
_REFRESHES_PER_SECOND = 4
_NOTEBOOK_BAR = 20  # columns
_NOTEBOOK_LINE = 110  # columns, that no notebook breaks
_NAMED = 4  # workers that are idle; of more it is said how many they are


class Status(Protocol):
    """What the engine says about itself (`EngineStats` does); of several, which have no work."""

    generated_tokens: int
    running: int
    blocks_used: int
    blocks_total: int
    idle: list[int]


class Progress:
    """Tokens drawn out of how many, and samples and problems done, with the engine's state.

    samples, problems: in this run, bar what an earlier one finished; samples=None where nobody
    knows how many there will be. longest: tokens that a sample has at most, None without a limit.
    Use as a context manager; `advance` after every completion, and `save` for every problem that
    needs no more of its samples.

    saved: samples that will not be drawn.
    """

    def __init__(
        self,
        status: Status,
        samples: int | None,
        problems: int | None,
        console: Console | None,
        longest: int | None = None,
    ) -> None:
        self.status = status
        self.samples = samples
        self.problems = problems
        self.longest = longest
        self.samples_done = 0
        self.problems_done = 0
        self.saved = 0
        self._tokens_done = 0  # of the samples that are done
        self._share = 0.0
        self._settled = 0  # samples of the problems that are decided, drawn or not
        self._console = console or Console(stderr=True)
        self._started = self._said = time.monotonic()
        self._before = status.generated_tokens
        self._live: RichProgress | None = None
        self._in_notebook = is_notebook(self._console.file)

    def __enter__(self) -> Progress:
        self._started = self._said = time.monotonic()
        if self._in_notebook:
            self._rewrite()
        elif self._console.is_terminal:
            self._live = _TwoLines(
                SpinnerColumn(),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                console=self._console,
                refresh_per_second=_REFRESHES_PER_SECOND,
                expand=True,
            )
            self._live.of = self
            self._live.add_task("tokens", total=None if self.samples is None else 1.0)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._in_notebook:
            self._rewrite(end="\n")
        elif self.samples_done:
            self._say()

    def advance(self, tokens: int, problem_done: bool) -> None:
        """One more sample is done, of so many tokens, and with it its problem or not."""
        self.samples_done += 1
        self._tokens_done += tokens
        self.problems_done += problem_done
        since = time.monotonic() - self._said
        if self._in_notebook and since >= 1 / _REFRESHES_PER_SECOND:
            self._rewrite()
        elif self._live is None and not self._in_notebook and since >= _PLAIN_SECONDS:
            self._say()

    def save(self, asked: int, saved: int) -> None:
        """A problem of which so many samples were asked is decided, and so many are not drawn."""
        self._settled += asked
        self.saved += saved
        self.problems_done += 1

    @property
    def expected(self) -> int | None:
        """Samples that will be drawn, if the other problems are decided like those so far."""
        if self.samples is None or not self._settled:
            return self.samples
        still = self.samples - self._settled
        return round(self.samples - self.saved - still * self.saved / self._settled)

    def share(self) -> float:
        """Of the tokens to draw, those that are drawn; it never falls. 0 without an end.

        What runs will have its tokens so far, and as many more as a finished sample has: the first
        that finish are the short ones, and say too little of the others.
        """
        samples = self.expected
        if not samples:
            return self._share
        if self.samples_done >= samples:
            return 1.0
        # Greedy samples that repeat another are done without being generated.
        drawn = max(self._tokens_done, self.status.generated_tokens - self._before)
        running = min(self.status.running, samples - self.samples_done)
        left = samples - self.samples_done - running
        if self.samples_done:
            each = self._tokens_done / self.samples_done
            so_far = (drawn - self._tokens_done) / max(1, running)
            whole = self._at_most(so_far + each)
            mean = (self._tokens_done + running * whole) / (self.samples_done + running)
        elif self.longest is not None:
            whole = mean = float(self.longest)
        else:
            return self._share
        total = self._tokens_done + running * whole + left * mean
        if total:
            self._share = max(self._share, min(drawn / total, 1.0))
        return self._share

    def _at_most(self, tokens: float) -> float:
        return tokens if self.longest is None else min(tokens, self.longest)

    def describe(self, width: int | None = None) -> str:
        """The state in one line; of that width, without what matters least."""
        seconds = time.monotonic() - self._started
        tokens = self.status.generated_tokens - self._before
        parts = [(0, f"{_of(self.samples_done, self.samples)} samples")]
        if self._settled:
            parts.append((4, f"{self.saved:,} saved, about {self.expected:,} expected"))
        if self.problems is not None:
            parts.append((3, f"{_of(self.problems_done, self.problems)} problems"))
        parts.append((2, f"{tokens / seconds if seconds else 0:,.0f} tokens/s"))
        parts.append((5, f"{self.status.running:,} running"))
        if self.status.idle:
            parts.append((7, _idle(self.status.idle)))
        if self.status.blocks_total:
            parts.append((6, f"KV {self.status.blocks_used / self.status.blocks_total:.0%}"))
        left = self.seconds_left()
        if left is not None:
            parts.append((1, f"{timedelta(seconds=round(left))} left"))
        while width is not None and len(parts) > 1 and len(_line(parts)) > width:
            parts.remove(max(parts))
        return _line(parts)

    def seconds_left(self) -> float | None:
        """At the pace so far; None before any token is drawn, or without an end."""
        share = self.share()
        if not share:
            return None
        return (time.monotonic() - self._started) / share * (1 - share)

    def _say(self) -> None:
        self._said = time.monotonic()
        share = "" if self.samples is None else f"{self.share():.0%} · "
        print(f"sharegen: {share}{self.describe()}", file=self._console.file, flush=True)

    def _rewrite(self, end: str = "") -> None:
        """The line of a notebook, which goes back to its start: no widget needs to be there."""
        self._said = time.monotonic()
        bar = ""
        if self.samples is not None:
            share = self.share()
            full = round(_NOTEBOOK_BAR * share)
            bar = f"{share:4.0%} {'█' * full}{'░' * (_NOTEBOOK_BAR - full)} "
        line = bar + self.describe(_NOTEBOOK_LINE - len(bar))
        print(f"\r{line:{_NOTEBOOK_LINE}}", end=end, file=self._console.file, flush=True)


class _TwoLines(RichProgress):
    """The bar and, below it, the state as it is at each refresh: it lives while no sample ends."""

    of: Progress | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.of is None:
            return
        for task in self.tasks:
            task.completed = self.of.share()
        yield from super().get_renderables()
        line = self.of.describe(self.console.width - 1)
        yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")


def is_notebook(stream: IO[str] | None) -> bool:
    """Whether what is written there is shown under a notebook's cell."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def is_shown(stream: IO[str] | None) -> bool:
    """Whether somebody sees a bar that is written there, as it grows."""
    return stream is not None and (is_notebook(stream) or stream.isatty())


def longest_of(limits: Iterable[int | None]) -> int | None:
    """The largest of several limits of tokens; None where a sample has none."""
    found = list(limits)
    known = [limit for limit in found if limit is not None]
    return max(known) if known and len(known) == len(found) else None


def _line(parts: Iterable[tuple[int, str]]) -> str:
    return " · ".join(text for _, text in parts)


def _of(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,}/{total:,}"


def _idle(workers: list[int]) -> str:
    if len(workers) == 1:
        return f"worker {workers[0]} idle"
    if len(workers) > _NAMED:
        return f"{len(workers)} workers idle"
    return f"workers {', '.join(map(str, workers))} idle"
