"""The nouns of drawing: a picture, and the theme that colours it.

A picture is drawn on matplotlib axes that it is given and uses no colour but its theme's; the
numbers behind it come along as a table, for those who cannot see it and those who want to copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Theme:
    """Colours, as CSS writes them; `series` has one for each run, and starts again after."""

    ink: str
    muted: str
    line: str
    right: str
    wrong: str
    series: tuple[str, ...]

    def of(self, index: int) -> str:
        return self.series[index % len(self.series)]


@dataclass(frozen=True)
class Picture:
    """name: for files and ids; header, rows: the numbers; draw: puts it on matplotlib axes."""

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    draw: Callable[[Any, Theme], None]


def percent(axis: Any) -> None:
    """Label an axis of shares in per cent."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
