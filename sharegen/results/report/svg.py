"""Draws pictures as SVG: in files on white, and inside a page in its colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from sharegen.results.report.axes import Area, Axes, Box, LegendEntry, Line, Words
from sharegen.results.report.picture import Picture, Theme

WIDTH, HEIGHT = 374, 252
_TITLE = 22  # pixels above a picture with a title
_FONT = 10.5  # pixels
_LETTER = 5.6  # of them, a letter on average
_KEY_ROW = 15


@dataclass(frozen=True)
class _Frame:
    """Where the scales lie, in pixels; y grows downwards."""

    axes: Axes
    left: float
    right: float
    top: float
    bottom: float

    def x(self, value: float) -> float:
        return self.left + self.axes.x.at(value) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - self.axes.y.at(value) * (self.bottom - self.top)


def picture_svg(picture: Picture, theme: Theme, titled: bool) -> str:
    """What stands inside an <svg> of WIDTH x HEIGHT; titled: with the picture's title."""
    axes = Axes()
    picture.draw(axes, theme)
    rows = list(_rows_of_keys(axes.keys))
    names = [_LETTER * len(name) for _, name in axes.y.ticks]
    frame = _Frame(
        axes,
        left=max(names, default=0) + (30 if axes.y.label else 14),
        right=WIDTH - 16,
        top=8 + (_TITLE if titled else 0),
        bottom=HEIGHT - (34 if axes.x.label else 20) - _KEY_ROW * len(rows),
    )
    parts = [*_scales(frame, theme), *(_mark(frame, mark) for mark in axes.marks)]
    first = HEIGHT - _KEY_ROW * len(rows) + 4
    for number, row in enumerate(rows):
        parts += _keys(row, first + _KEY_ROW * number, theme)
    if titled:
        parts.append(_text(8, 16, picture.title, theme.ink, "start", "bold"))
    return "".join(parts)


def _scales(frame: _Frame, theme: Theme) -> Iterator[str]:
    axes = frame.axes
    for value, name in axes.x.ticks:
        at = frame.x(value)
        if axes.x.lines:
            yield _stroke(f"M{at:.1f} {frame.top:.1f}V{frame.bottom:.1f}", theme.line, 0.8)
        yield _text(at, frame.bottom + 13, name, theme.muted)
    for value, name in axes.y.ticks:
        at = frame.y(value)
        if axes.y.lines:
            yield _stroke(f"M{frame.left:.1f} {at:.1f}H{frame.right:.1f}", theme.line, 0.8)
        if name:
            yield _text(frame.left - 5, at + 3.5, name, theme.muted, "end")
    corner = f"M{frame.left:.1f} {frame.top:.1f}V{frame.bottom:.1f}H{frame.right:.1f}"
    yield _stroke(corner, theme.muted, 1)
    middle = (frame.left + frame.right) / 2
    if axes.x.label:
        yield _text(middle, frame.bottom + 28, axes.x.label, theme.muted)
    if axes.y.label:
        middle = (frame.top + frame.bottom) / 2
        yield _text(12, middle, axes.y.label, theme.muted, turn=True)


def _mark(frame: _Frame, mark: Line | Area | Box | Words) -> str:
    if isinstance(mark, Words):
        x, y = (frame.x(mark.place[0]), frame.y(mark.place[1]))
        x, y = x + mark.shift[0], y + mark.shift[1]
        return _text(x, y, mark.text, mark.color, mark.anchor, turn=not mark.upright)
    if isinstance(mark, Box):
        return _box(frame, mark)
    points = [(frame.x(x), frame.y(y)) for x, y in mark.points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    if isinstance(mark, Area):
        return f'<path d="{path}Z" style="fill:{mark.color};fill-opacity:{mark.opacity:g}"/>'
    drawn = _stroke(path, mark.color, 2, "5 3" if mark.dashed else "")
    if not mark.dots:
        return drawn
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" style="fill:{mark.color}"/>' for x, y in points
    )
    return drawn + dots


def _box(frame: _Frame, box: Box) -> str:
    xs = sorted((frame.x(box.start[0]), frame.x(box.end[0])))
    ys = sorted((frame.y(box.start[1]), frame.y(box.end[1])))
    width, height = (max(high - low, box.least) for low, high in (xs, ys))
    return (
        f'<rect x="{xs[0]:.1f}" y="{ys[0]:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'style="fill:{box.color};fill-opacity:{box.opacity:g}"/>'
    )


def _rows_of_keys(keys: Sequence[LegendEntry]) -> Iterator[list[LegendEntry]]:
    """The legend in rows, each with as many entries as fit."""
    row: list[LegendEntry] = []
    for key in keys:
        if row and sum(map(_width, [*row, key])) > WIDTH - 24:
            yield row
            row = []
        row.append(key)
    if row:
        yield row


def _width(key: LegendEntry) -> float:
    return 34 + _LETTER * len(key.label)


def _keys(row: Sequence[LegendEntry], y: float, theme: Theme) -> Iterator[str]:
    x = 12.0
    for key in row:
        if key.line:
            yield _stroke(f"M{x:.1f} {y:.1f}h16", key.color, 2, "5 3" if key.dashed else "")
        else:
            style = f"fill:{key.color};fill-opacity:{key.opacity:g}"
            yield f'<rect x="{x:.1f}" y="{y - 4:.1f}" width="16" height="8" style="{style}"/>'
        yield _text(x + 21, y + 3.5, key.label, theme.ink, "start")
        x += _width(key)


def _stroke(path: str, color: str, width: float, dashes: str = "") -> str:
    style = f"fill:none;stroke:{color};stroke-width:{width:g};stroke-linejoin:round"
    return f'<path d="{path}" style="{style}{f";stroke-dasharray:{dashes}" if dashes else ""}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    color: str,
    anchor: str = "middle",
    weight: str = "normal",
    turn: bool = False,
) -> str:
    turned = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    style = f"fill:{color};font-size:{_FONT}px;font-weight:{weight};text-anchor:{anchor}"
    return f'<text x="{x:.1f}" y="{y:.1f}"{turned} style="{style}">{escape(text)}</text>'
