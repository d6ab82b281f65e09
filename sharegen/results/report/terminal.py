"""The curves in plain characters, for a terminal or a log."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from sharegen.results.report.comparison import comparisons
from sharegen.results.report.curves import Curve, is_round
from sharegen.results.report.differences import differences
from sharegen.results.report.measure import Measured
from sharegen.results.scoring.passk import SUBSETS

_HEIGHT = 12
_WIDTH = 61
_MARKS = "*o#x+%@&"
_COLUMNS = 100  # of the widest line
_SIDE_BY_SIDE = 4  # curves of a table


def chart(runs: Sequence[Measured]) -> str:
    """Draw pass@k and maj@k of every run against k, and under it the numbers; "" without
    verdicts.
    """
    found = [
        (run.name, name, curve)
        for run in runs
        for name, curve in (("pass@k", run.passed), ("maj@k", run.majority))
        if curve is not None
    ]
    if not found:
        return ""
    several = len(runs) > 1
    names = [f"{_mark(at)} {name}" if several else name for at, (_, name, _) in enumerate(found)]
    curves = [curve for *_, curve in found]
    lines = []
    largest = max(curve.ks[-1] for curve in curves)
    if largest > 1:
        lines += [*_plot(curves, largest), ""]
    if largest > 1 or several:
        of_run = (f"{run} {name}" if several else name for run, name, _ in found)
        lines += [f"  {_mark(at)}  {_cut(name)}" for at, name in enumerate(of_run)]
        lines.append("")
    for first in range(0, len(curves), _SIDE_BY_SIDE):
        some = slice(first, first + _SIDE_BY_SIDE)
        lines += _table(names[some], curves[some])
    lines.append("95% intervals: bootstrap over problems; exact ones where all are right, or none.")
    for each in comparisons(runs):
        lines += textwrap.wrap(each.in_words(), _COLUMNS, subsequent_indent="  ")
    lines += differences([run.run for run in runs], _COLUMNS)
    if largest > 1 and any(run.majority is not None for run in runs):
        lines.append(f"maj@k between one and all samples: mean of {SUBSETS} random subsets.")
    return "\n".join(lines)


def _plot(curves: Sequence[Curve], largest: int) -> list[str]:
    top = max(1, math.ceil(5 * max(max(curve.mean) for curve in curves) - 1e-9)) / 5
    grid = [[" "] * _WIDTH for _ in range(_HEIGHT + 1)]
    for index, curve in reversed(list(enumerate(curves))):
        for column in range(_WIDTH):
            value = _at(curve, largest ** (column / (_WIDTH - 1)))
            if value is not None:
                grid[_HEIGHT - round(value / top * _HEIGHT)][column] = _mark(index)
    lines = []
    for row, cells in enumerate(grid):
        level = top * (_HEIGHT - row) / _HEIGHT
        label = f"{level:.0%}" if row % 3 == 0 else ""
        lines.append(f"{label:>5} |{''.join(cells)}".rstrip())
    ticks = [2**e for e in range(largest.bit_length())]
    axis = [" "] * (_WIDTH + 8)
    end = -1
    for tick in ticks:
        column = round(math.log(tick) / math.log(largest) * (_WIDTH - 1))
        if column > end:
            axis[column : column + len(str(tick))] = str(tick)
            end = column + len(str(tick))
    lines.append(f"{'':5} +{'-' * _WIDTH}")
    lines.append(f"{'':7}{''.join(axis).rstrip()}  samples k (log scale)")
    return lines


def _at(curve: Curve, k: float) -> float | None:
    """The curve between its points, straight on the logarithmic axis; None beyond its end."""
    if k > curve.ks[-1] * (1 + 1e-9):
        return None
    right = next(i for i, at in enumerate(curve.ks) if at >= k * (1 - 1e-9))
    if right == 0:
        return curve.mean[0]
    low, high = curve.ks[right - 1], curve.ks[right]
    part = math.log(k / low) / math.log(high / low)
    return curve.mean[right - 1] + part * (curve.mean[right] - curve.mean[right - 1])


def _table(names: Sequence[str], curves: Sequence[Curve]) -> list[str]:
    """The numbers side by side; a cell is a share and its interval, in per cent."""
    ks = sorted({k for curve in curves for k in curve.ks})
    ks = [k for k in ks if is_round(k) or k in {curve.ks[-1] for curve in curves}]
    width = len("100.0% [100.0, 100.0]")
    lines = ["    k" + "".join(f"  {name:>{width}}" for name in names)]
    for k in ks:
        cells = []
        for curve in curves:
            cell = ""
            if k in curve.ks:
                i = curve.ks.index(k)
                interval = f"[{100 * curve.low[i]:5.1f}, {100 * curve.high[i]:5.1f}]"
                cell = f"{curve.mean[i]:6.1%} {interval}"
            cells.append(f"  {cell:>{width}}")
        lines.append(f"{k:>5}{''.join(cells)}".rstrip())
    return lines


def _cut(name: str) -> str:
    """The end of a name that is too long for a line: there runs differ."""
    most = _COLUMNS - 6
    return name if len(name) <= most else f"...{name[3 - most :]}"


def _mark(index: int) -> str:
    return _MARKS[index % len(_MARKS)]
