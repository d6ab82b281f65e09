"""The few rows that README shows, as its table and as the chart of speed beside other programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measurement import Measurement
from benchmarks.tables.markdown import number, table, with_table
from benchmarks.tables.marks import FEW_EXPERTS, Marks, age, of_most_code, same_code
from sharegen.results.report.axes import Axes, LegendEntry, Scale, nice
from sharegen.results.report.figures import PRINT
from sharegen.results.report.picture import Picture, Theme
from sharegen.results.report.svg import HEIGHT, WIDTH, picture_svg

ROWS = (
    "llama3-8b-gsm8k-bf16",
    "llama3-8b-longdoc-bf16",
    "llama3-8b-reason-bf16",
    "llama3-8b-few-bf16",
    "llama3-8b-gsm8k-fp8",
    "llama3.2-1b-gsm8k-bf16",
    "qwen3-30b-a3b-gsm8k-bf16",
    "llama3-70b-gsm8k-bf16-ranks-2",
)
"""What README shows, in this order, of what was measured beside another program."""

_NAMES = {
    "llama3-8b": "Llama-3-8B",
    "llama3.2-1b": "Llama-3.2-1B",
    "llama3-70b": "Llama-3-70B",
    "qwen3-30b-a3b": "Qwen3-30B-A3B",
}


def headline(measured: Sequence[Measurement]) -> list[Measurement]:
    """The newest of each of the rows that was measured."""
    by_row: dict[str, Measurement] = {}
    for row in measured:
        if row.times is not None and (row.row not in by_row or by_row[row.row].date <= row.date):
            by_row[row.row] = row
    return [by_row[name] for name in ROWS if name in by_row]


def readme(text: str, measured: Sequence[Measurement]) -> str:
    """README with its table of today. Raises DataError where the table has no place."""
    return with_table(text, "speed", speed_table(headline(measured), measured), "README.md")


def newer(row: Measurement, measured: Sequence[Measurement]) -> Measurement | None:
    """The newest measurement of a row by newer code, without another program beside it."""
    found = [
        each
        for each in measured
        if each.row == row.row and each.times is None and each.date > row.date
    ]
    return max(found, key=lambda each: each.date, default=None)


def speed_table(rows: Sequence[Measurement], measured: Sequence[Measurement] = ()) -> str:
    """Markdown, with what the rows have in common below it; no commits.

    Its last column has what newer code draws, where the other program was not beside it again.
    """
    if not rows:
        return "Nothing was measured beside another program."
    most, card = _common(rows)
    later = [newer(row, measured) for row in rows]
    known = [each for each in later if each is not None]
    latest, its = _common(known or rows)
    marks = Marks()
    lines = [
        [*_line(row, marks, card, most), _alone(each, marks, its, latest)]
        for row, each in zip(rows, later, strict=True)
    ]
    header = ["model's shape", "workload", "sharegen", "best peer", "times"]
    header.append(f"newer code, {' '.join(its.split()[:2])}")
    common = (
        "Tokens per second of whole jobs with random weights, measured on "
        f"{_days(most)}, on an {card}, where no letter says otherwise. FP8: weights and "
        "KV cache."
    )
    if known:
        common += f" Newer code: on {_days(latest)}, on an {its}, without the peer."
    return (
        table(header, lines)
        + "\n\n"
        + "\\\n".join(filter(None, [common, " ".join(marks.legend())]))
    )


def _common(rows: Sequence[Measurement]) -> tuple[list[Measurement], str]:
    """What others of a column are compared with: the rows of one commit, and the card of most."""
    cards = Counter(row.card.name for row in rows)
    return of_most_code(rows), cards.most_common(1)[0][0]


def _days(rows: Sequence[Measurement]) -> str:
    """The days on which they were measured, each once."""
    return " and ".join(sorted({f"{row.date:%Y-%m-%d}" for row in rows}))


def _alone(row: Measurement | None, marks: Marks, card: str, most: Sequence[Measurement]) -> str:
    if row is None:
        return ""
    return number(row.numbers.tokens_per_second) + marks.of(*_said(row, card, most))


def _line(row: Measurement, marks: Marks, card: str, most: Sequence[Measurement]) -> list[str]:
    peer = row.best_peer
    assert peer is not None and row.workload is not None
    ours = number(row.numbers.tokens_per_second) + marks.of(*_said(row, card, most))
    theirs = f"{number(peer.tokens_per_second)} ({peer.name} {peer.version})"
    if peer.sitting == "another":
        theirs += marks.of("That program ran in an earlier sitting, on another card of this name.")
    name = f"{_NAMES.get(row.shape or '', row.shape)}, {row.precision}"
    return [name, row.workload.name, ours, theirs, number(row.times, 2)]


def _said(row: Measurement, card: str, most: Sequence[Measurement]) -> Iterator[str]:
    if row.card.name != card:
        yield f"On {row.card.label}."
    elif row.card.count > 1:
        yield f"On {row.card.count} of these cards."
    if not same_code(row, most[0]):
        yield f"Measured on {row.date:%Y-%m-%d}, with {age(row, most)} code."
    if row.few_experts:
        yield FEW_EXPERTS


_DARK = Theme(
    ink="#e6e9ee", muted="#9aa4b1", line="#39414b", right="#5cc08c", wrong="#e2766b",
    series=("#6aa5ee", "#5b6570", *PRINT.series[2:]),
)  # fmt: skip
_LIGHT = Theme(
    PRINT.ink, PRINT.muted, PRINT.line, PRINT.right, PRINT.wrong,
    (PRINT.series[0], "#b4bcc6", *PRINT.series[2:]),
)  # fmt: skip
THEMES = {"speed.svg": (_LIGHT, "#ffffff"), "speed-dark.svg": (_DARK, "#16191d")}
"""The files of the chart, each with its colours and what is behind them."""

_MARGIN = 20  # pixels on the left, for fonts whose letters are wide
_THICK = 0.36  # of the room of a row
_FONT = "font-family:system-ui,-apple-system,Segoe UI,Roboto,Helvetica,Arial,sans-serif"


def chart(rows: Sequence[Measurement], theme: Theme, paper: str) -> str:
    """How many times as fast as the best peer of each row, as an SVG file."""
    picture = Picture("speed", "", "", (), (), lambda axes, _: _draw(axes, rows, theme))
    width = WIDTH + _MARGIN
    spoken = "; ".join(f"{_label(row)}: {number(row.times, 2)} times" for row in rows)
    title = f"sharegen's tokens per second beside the best other program's. {spoken}."
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'viewBox="{-_MARGIN} 0 {width} {HEIGHT}" width="{2 * width}" height="{2 * HEIGHT}" '
        f'style="{_FONT}"><title>{title}</title>'
        f'<rect x="{-_MARGIN}" width="100%" height="100%" style="fill:{paper}"/>'
        f"{picture_svg(picture, theme, titled=False)}</svg>\n"
    )


def _draw(axes: Axes, rows: Sequence[Measurement], theme: Theme) -> None:
    times = [row.times or 0.0 for row in rows]
    high = max(times, default=1.0) * 1.12
    axes.x = Scale(0, high, "best peer = 1", [(tick, f"{tick:g}") for tick in nice(high)])
    places = range(len(rows) - 1, -1, -1)  # the first one on top
    names = [(float(place), _label(row)) for place, row in zip(places, rows, strict=True)]
    axes.y = Scale(-0.6, len(rows) - 0.4, "", names, lines=False)
    for place, value in zip(places, times, strict=True):
        _bar(axes, place, value, theme.of(0))
        _bar(axes, place - _THICK, 1.0, theme.of(1))
        end = (value, place + _THICK / 2)
        axes.words(end, f"{value:.2f}", theme.ink, anchor="start", shift=(4, 3.5))
    axes.keys += [
        LegendEntry("sharegen's tokens per second", theme.of(0)),
        LegendEntry("the best peer's", theme.of(1)),
    ]


def _bar(axes: Axes, bottom: float, value: float, color: str) -> None:
    axes.bars([0.0], [_THICK], value, color, bottoms=[bottom])


def _label(row: Measurement) -> str:
    workload = row.workload.name if row.workload else ""
    precision = "" if row.precision == "bf16" else f" {row.precision}"
    return f"{_NAMES.get(row.shape or '', row.shape)}{precision} {workload}"


def pictures(measured: Sequence[Measurement]) -> dict[Path, str]:
    """The chart's files, in the folder of the site's pictures."""
    rows = headline(measured)
    assets = Path("docs") / "assets"
    return {assets / name: chart(rows, *colors) for name, colors in THEMES.items()}
