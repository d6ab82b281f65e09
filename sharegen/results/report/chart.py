"""What is drawn of measurements: lines over numbers, or bars by name, as pictures of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sharegen.results.report.axes import Axes, LegendEntry, Line, Scale, nice
from sharegen.results.report.picture import Picture, Theme

_ROOM = 1.06  # above the highest mark
_MOST_TICKS = 8
_BAR = 0.6  # of the room of one name


@dataclass(frozen=True)
class Series:
    """A series of a chart. points: [x, y] by rising x; dashed: what was not measured here."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines of some series; x_log, y_log: with logarithmic scales, and values above 0."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False

    def picture(self) -> Picture:
        rows = tuple(
            (each.label, f"{x:g}", f"{y:g}") for each in self.series for x, y in each.points
        )
        header = ("", self.x_label, self.y_label)
        return Picture(self.name, self.title, "", header, rows, self._draw)

    def _draw(self, axes: Axes, theme: Theme) -> None:
        drawn = [each for each in self.series if each.points]
        xs = sorted({x for each in drawn for x, _ in each.points})
        ys = [y for each in drawn for _, y in each.points]
        if not xs:
            return
        axes.x = Scale(*_ends(xs, self.x_log), self.x_label, _thinned(xs), self.x_log)
        axes.y = _scale(ys, self.y_label, self.y_log)
        for index, each in enumerate(drawn):
            color = theme.of(index)
            axes.marks.append(Line(each.points, color, each.dashed, dots=True))
            axes.keys.append(LegendEntry(each.label, color, line=True, dashed=each.dashed))


@dataclass(frozen=True)
class Bars:
    """One bar a name."""

    name: str
    title: str
    y_label: str
    bars: Sequence[tuple[str, float]]

    def picture(self) -> Picture:
        rows = tuple((name, f"{value:g}") for name, value in self.bars)
        return Picture(self.name, self.title, "", ("", self.y_label), rows, self._draw)

    def _draw(self, axes: Axes, theme: Theme) -> None:
        if not self.bars:
            return
        axes.x = Scale(-0.5, len(self.bars) - 0.5, lines=False)
        axes.y = _scale([value for _, value in self.bars], self.y_label, log=False)
        for index, (name, value) in enumerate(self.bars):
            color = theme.of(index)
            axes.bars([index - _BAR / 2], [value], _BAR, color)
            axes.words((index, value), f"{value:,.4g}", theme.ink, shift=(0, -4))
            axes.keys.append(LegendEntry(name, color))


def _ends(xs: Sequence[float], log: bool) -> tuple[float, float]:
    low, high = xs[0], xs[-1]
    if low < high:
        return low, high
    return (low / 2, high * 2) if log else (low - 1, high + 1)


def _thinned(xs: Sequence[float]) -> list[tuple[float, str]]:
    step = math.ceil(len(xs) / _MOST_TICKS)
    return [(x, f"{x:,.6g}") for x in xs[::step]]


def _scale(ys: Sequence[float], label: str, log: bool) -> Scale:
    high = max(ys)
    if not log:
        ticks = [(tick, f"{tick:,.6g}") for tick in nice(high * _ROOM)]
        return Scale(0, high * _ROOM or 1.0, label, ticks)
    powers = range(math.floor(math.log10(min(ys))), math.ceil(math.log10(high)) + 1)
    if len(powers) < 2:
        powers = range(powers[0], powers[0] + 2)
    ends = 10.0 ** powers[0], 10.0 ** powers[-1]
    return Scale(*ends, label, [(10.0**power, f"{10.0**power:,.6g}") for power in powers], log=True)
