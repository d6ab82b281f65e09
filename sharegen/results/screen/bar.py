"""A bar on stderr of what takes long: drawn in a terminal, a line in a notebook, lines elsewhere.

What it is of says its share and its state; the bar decides when and how they are shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import IO, Protocol

from rich.console import Console, RenderableType
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from sharegen.common.printable import has_signs, in_ascii

_PLAIN_SECONDS = 10.0
_REFRESHES_PER_SECOND = 4
_NOTEBOOK_BAR = 20  # columns
_NOTEBOOK_LINE = 110  # columns, that no notebook breaks


class Work(Protocol):
    """What a bar is of. It is asked from a thread of the bar's own, too."""

    def share(self) -> float:
        """The part that is done, from 0 to 1."""

    def describe(self, width: int | None = None) -> str:
        """The state in one line; of that width, without what matters least."""


class Bar:
    """Shows how far a piece of work is, from `start` to `stop`.

    Args:
        work: what is asked for its share and state.
        console: where it is shown; by default stderr.
        has_end: whether the share means anything, for nobody may know how much there is.
    """

    def __init__(self, work: Work, console: Console | None, has_end: bool = True) -> None:
        self._work = work
        self._console = console or Console(stderr=True)
        self._has_end = has_end
        self._said = time.monotonic()
        self._live: _TwoLines | None = None
        self._in_notebook = is_notebook(self._console.file)

    def start(self) -> None:
        self._said = time.monotonic()
        if self._in_notebook:
            self._rewrite()
        elif self._console.is_terminal:
            self._live = _TwoLines(self._work, self._console, self._has_end)
            self._live.start()

    def tick(self) -> None:
        """Note that something more is done, and show it where it is time."""
        since = time.monotonic() - self._said
        if self._in_notebook and since >= 1 / _REFRESHES_PER_SECOND:
            self._rewrite()
        elif self._live is None and not self._in_notebook and since >= _PLAIN_SECONDS:
            self._say()

    def stop(self, has_news: bool) -> None:
        """Show the end; has_news: whether anything was done, without which no line is written."""
        if self._live is not None:
            self._live.stop()
        elif self._in_notebook:
            self._rewrite(end="\n")
        elif has_news:
            self._say()

    def _say(self) -> None:
        self._said = time.monotonic()
        share = f"{self._work.share():.0%} · " if self._has_end else ""
        self._print(f"sharegen: {share}{self._work.describe()}\n")

    def _rewrite(self, end: str = "") -> None:
        """The line of a notebook, which goes back to its start: no widget needs to be there."""
        self._said = time.monotonic()
        bar = ""
        if self._has_end:
            share = self._work.share()
            full = round(_NOTEBOOK_BAR * share)
            bar = f"{share:4.0%} {'█' * full}{'░' * (_NOTEBOOK_BAR - full)} "
        line = bar + self._work.describe(_NOTEBOOK_LINE - len(bar))
        self._print(f"\r{line:{_NOTEBOOK_LINE}}{end}")

    def _print(self, text: str) -> None:
        shown = text if has_signs(self._console.encoding) else in_ascii(text)
        print(shown, end="", file=self._console.file, flush=True)


class _TwoLines(RichProgress):
    """The bar and, below it, the state as it is at each refresh: it lives while nothing ends."""

    def __init__(self, work: Work, console: Console, has_end: bool) -> None:
        self._work: Work | None = None  # Rich asks for what there is to draw as it is made
        super().__init__(
            SpinnerColumn(),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            console=console,
            refresh_per_second=_REFRESHES_PER_SECOND,
            expand=True,
        )
        self._work = work
        self.add_task("work", total=1.0 if has_end else None)

    def get_renderables(self) -> Iterable[RenderableType]:
        if self._work is None:
            return
        for task in self.tasks:
            task.completed = self._work.share()
        yield from super().get_renderables()
        line = self._work.describe(self.console.width - 1)
        line = line if has_signs(self.console.encoding) else in_ascii(line)
        yield Text(line, style="dim", no_wrap=True, overflow="ellipsis")


def fitted(parts: Iterable[tuple[int, str]], width: int | None) -> str:
    """Parts of a line, each with its rank; the highest ranks are left out where it is too long."""
    left = list(parts)
    while width is not None and len(left) > 1 and len(_line(left)) > width:
        left.remove(max(left))
    return _line(left)


def _line(parts: Iterable[tuple[int, str]]) -> str:
    return " · ".join(text for _, text in parts)


def is_notebook(stream: IO[str] | None) -> bool:
    """Whether what is written there is shown under a notebook's cell."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def is_shown(stream: IO[str] | None) -> bool:
    """Whether somebody sees a bar that is written there, as it grows."""
    return stream is not None and (is_notebook(stream) or stream.isatty())
