"""The nouns of drawing: a picture, and the theme that colours it.

A picture is drawn on matplotlib axes that it is given and uses no colour but its theme's; the
numbers behind it come along as a table, for those who cannot see it and those who want to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def legend(axes: Any, names: Sequence[str], theme: Theme, also: Sequence[Any] = ()) -> None:
    """The runs by colour, in rows under the axes, where no line is; nothing for a single one.

    also: more handles, each with a label, such as line styles.
    """
    from matplotlib.patches import Patch
    from matplotlib.transforms import offset_copy

    handles = [Patch(color=theme.of(i), label=_elide(n)) for i, n in enumerate(names)]
    handles = [*(handles if len(names) > 1 else []), *also]
    if handles:
        longest = max(len(str(handle.get_label())) for handle in handles)
        under = offset_copy(axes.transAxes, fig=axes.figure, y=-38, units="points")
        axes.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=under,
            borderaxespad=0,
            handlelength=1.6,
            ncols=max(1, min(4, 64 // (longest + 6))),
        )


_LEGEND = 40


def _elide(name: str) -> str:
    return name if len(name) <= _LEGEND else f"…{name[1 - _LEGEND :]}"
