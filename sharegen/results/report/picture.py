"""The nouns of drawing: a picture, and the theme that colours it.

A picture is drawn on axes that it is given and uses no colour but its theme's; the numbers behind
it are written as a table, too, for those who cannot see it and those who want to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sharegen.results.report.axes import Axes, LegendEntry


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
    """A picture of a report. name: for files and ids; header, rows: the numbers; draw: puts it on
    axes.
    """

    name: str
    title: str
    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    draw: Callable[[Axes, Theme], None]


def legend(
    axes: Axes, names: Sequence[str], theme: Theme, also: Sequence[LegendEntry] = ()
) -> None:
    """The runs by colour, under the picture, where no line is; nothing for a single one.

    also: more entries, such as kinds of lines.
    """
    runs = [
        LegendEntry(shortened(name, _LEGEND), theme.of(index)) for index, name in enumerate(names)
    ]
    axes.keys += [*(runs if len(names) > 1 else []), *also]


_LEGEND = 40


def shortened(name: str, most: int) -> str:
    """The end of a name, which tells it from others in one folder."""
    return name if len(name) <= most else f"…{name[1 - most :]}"
