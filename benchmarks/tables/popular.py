"""Ten popular shapes beside their own ceilings: a line each, and what is not measured says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date

from benchmarks.card.popular import SHAPE_TABLE, Shape
from benchmarks.measurement import Measurement, Numbers
from benchmarks.tables.markdown import number, table
from benchmarks.tables.marks import FEW_EXPERTS, Marks

_NOT = "not measured"
_WORKLOAD = "gsm8k"
_TOGETHER = {
    "products": ("products", "quantising"),
    "attention": ("shared", "suffix", "store", "attention"),
    "mixers": ("mixers",),
    "experts": ("expert_products", "experts"),
    "norms, RoPE, gates": ("norms", "rope", "gates"),
    "sampling": ("sampling",),
    "rest": ("ranks", "rest"),
    "host": ("idle",),
}
"""Columns of a step's milliseconds, and the parts that each adds up."""


def popular_table(measured: Sequence[Measurement]) -> str:
    """All ten, with the newest row of each: one with its ceiling, or else a job without one.

    Of rows of one day it is that of more sequences.
    """
    marks = Marks()
    header = (
        "shape", "precision", "sequences", "tokens per second", "ceiling", "of it", "card",
        "measured",
    )  # fmt: skip
    lines = [_line(shape, row, marks) for shape, row in _rows(measured)]
    cells = table(header, [[line.get(name, "") for name in header] for line in lines])
    return "\n\n".join(filter(None, [cells, *marks.legend()]))


def parts_table(measured: Sequence[Measurement]) -> str:
    """The milliseconds of a step of each, by part, where they were measured; empty for none."""
    header = ("shape", "precision", "step, ms", *_TOGETHER)
    lines = [
        {"shape": shape.title, "precision": row.precision or ""} | _parts(row.numbers)
        for shape, row in _rows(measured)
        if row is not None and row.numbers.parts_ms
    ]
    if not lines:
        return ""
    return table(header, [[line.get(name, "") for name in header] for line in lines])


def _rows(measured: Sequence[Measurement]) -> Iterator[tuple[Shape, Measurement | None]]:
    """Each shape with its newest row, or None; and with that in FP8, where there is one."""
    for shape in SHAPE_TABLE:
        yield shape, _newest(shape, measured, "bf16")
        if (fp8 := _newest(shape, measured, "FP8")) is not None:
            yield shape, fp8


def _newest(shape: Shape, measured: Sequence[Measurement], precision: str) -> Measurement | None:
    rows = [
        row
        for row in measured
        if row.shape == shape.name
        and row.precision == precision
        and row.card.count == 1
        and row.workload is not None
        and row.workload.name == _WORKLOAD
        and row.kind in ("ceiling", "job")
    ]
    return max(rows, key=_rank, default=None)


def _rank(row: Measurement) -> tuple[bool, date, int]:
    return row.kind == "ceiling", row.date, row.engines.sequences or 0


def _line(shape: Shape, row: Measurement | None, marks: Marks) -> dict[str, str]:
    if row is None:
        return {"shape": shape.title, "tokens per second": _NOT, "ceiling": _NOT}
    numbers = row.numbers
    pace, ceiling = numbers.tokens_per_second, numbers.ceiling_tokens_per_second
    assert pace is not None
    return {
        "shape": shape.title,
        "precision": row.precision or "",
        "sequences": number(row.engines.sequences),
        "tokens per second": number(pace) + marks.of(*[FEW_EXPERTS] * row.few_experts),
        "ceiling": number(ceiling) or _NOT,
        "of it": f"{pace / ceiling:.0%}" if ceiling else "",
        "card": row.card.label,
        "measured": f"{row.date:%Y-%m-%d}",
    }


def _parts(numbers: Numbers) -> dict[str, str]:
    sums = {
        column: sum(numbers.parts_ms.get(part, 0.0) for part in parts)
        for column, parts in _TOGETHER.items()
    }
    cells = {column: number(ms, 1) for column, ms in sums.items() if ms}
    return {"step, ms": number(numbers.step_ms, 1)} | cells
