"""What a picture is made of: lines, areas, boxes and words between two scales, in data's own terms.

`svg` draws it. A picture says what there is, and nothing of pixels but the smallest size of a box.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """One direction: from low to high, with the places that are named.

    ticks: [place, name]; log: whether equal ratios are equally far; lines: across the picture at
    the ticks.
    """

    low: float
    high: float
    label: str = ""
    ticks: Sequence[tuple[float, str]] = ()
    log: bool = False
    lines: bool = True

    def at(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return (value - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True)
class Line:
    """A line of a chart. points: [x, y]; dots: whether each is marked."""

    points: Sequence[Point]
    color: str
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Area:
    """What lies inside a line that is closed."""

    points: Sequence[Point]
    color: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Box:
    """A rectangle from one corner to the other; least: pixels that it is wide and high, if it is
    anything.
    """

    start: Point
    end: Point
    color: str
    opacity: float = 1.0
    least: float = 0.0


@dataclass(frozen=True)
class Words:
    """A text at a place, and so many pixels from there."""

    place: Point
    text: str
    color: str
    anchor: Literal["start", "middle", "end"] = "middle"
    shift: Point = (0, 0)
    upright: bool = True


@dataclass(frozen=True)
class LegendEntry:
    """One entry of the legend: a box or a line of a colour, and what it stands for."""

    label: str
    color: str
    line: bool = False
    dashed: bool = False
    opacity: float = 1.0


@dataclass
class Axes:
    """A picture as it comes together; later marks lie over earlier ones."""

    x: Scale = Scale(0, 1)
    y: Scale = Scale(0, 1)
    marks: list[Line | Area | Box | Words] = field(default_factory=list)
    keys: list[LegendEntry] = field(default_factory=list)

    def line(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        color: str,
        dashed: bool = False,
        dots: bool = False,
    ) -> None:
        self.marks.append(Line(list(zip(xs, ys, strict=True)), color, dashed, dots))

    def band(
        self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], color: str
    ) -> None:
        """What lies between two curves, faintly."""
        there, back = zip(xs, low, strict=True), zip(xs, high, strict=True)
        self.marks.append(Area([*there, *reversed(list(back))], color, 0.14))

    def steps(
        self, values: Sequence[float], edges: Sequence[float], color: str, filled: bool = False
    ) -> None:
        """A level between each two edges. values: [n]; edges: [n + 1]."""
        points = [
            point
            for value, left, right in zip(values, edges[:-1], edges[1:], strict=True)
            for point in ((left, value), (right, value))
        ]
        if filled:
            self.marks.append(Area([(edges[0], 0), *points, (edges[-1], 0)], color))
        else:
            self.marks.append(Line(points, color))

    def bars(
        self,
        lefts: Sequence[float],
        heights: Sequence[float],
        width: float,
        color: str,
        bottoms: Sequence[float] | None = None,
        opacity: float = 1.0,
    ) -> None:
        """Standing side by side, each on 0 or on what is below it."""
        below = bottoms if bottoms is not None else [0.0] * len(heights)
        for left, height, bottom in zip(lefts, heights, below, strict=True):
            if height:
                end = (left + width, bottom + height)
                self.marks.append(Box((left, bottom), end, color, opacity))

    def words(self, place: Point, text: str, color: str, **more: object) -> None:
        self.marks.append(Words(place, text, color, **more))  # type: ignore[arg-type]


def nice(high: float, most: int = 5, whole: bool = False) -> list[float]:
    """Round numbers from 0 to `high`, at most so many steps apart; whole: no fractions."""
    if high <= 0:
        return [0.0]
    power = 10.0 ** math.floor(math.log10(high / most))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if high / (s * power) <= most + 1e-9)
    if whole:
        step = max(1.0, math.ceil(step))
    return [step * i for i in range(int(high / step + 1e-9) + 1)]


def shares(high: float, label: str = "", lines: bool = True) -> Scale:
    """A scale from 0 to `high`, labelled in per cent."""
    ticks = [(tick, f"{100 * tick:.4g}%") for tick in nice(high)]
    return Scale(0, high or 1.0, label, ticks, lines=lines)
