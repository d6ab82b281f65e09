"""What an experiment of a paper is made of, and what it is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sharegen.results.report.chart import Bars, Chart

Row = dict[str, Any]
"""One measured point by plain names: numbers, texts, or None where something has no value."""


@dataclass(frozen=True)
class Settings:
    """What the command line asks of an experiment.

    quick: a tiny shape, which two cores finish in two minutes. repeats: timed runs of each point,
    after one that is not. peers: those of the experiment that are installed. The others are of the
    experiments that name them in `Experiment.takes`, and None where they are not given.
    shape: names, of models with random weights, cut among tensor_parallel_size GPUs. tables: every
    cell of the paper's. problems: of a job. model: with weights, a folder or hub id. document,
    facts: files. questions: asked at once, one number after the other.
    """

    device: torch.device
    dtype: torch.dtype
    quick: bool = False
    repeats: int = 3
    peers: frozenset[str] = frozenset()
    shape: tuple[str, ...] | None = None
    tensor_parallel_size: int | None = None
    tables: bool | None = None
    problems: int | None = None
    model: str | None = None
    document: Path | None = None
    facts: Path | None = None
    questions: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Column:
    """A column of the table, which is left out where no row has a value.

    key: of a row's value; spread: of its standard deviation, shown after it; digits: after the
    point.
    """

    key: str
    heading: str
    digits: int = 0
    spread: str | None = None

    def text(self, row: Row) -> str:
        value = row.get(self.key)
        if value is None:
            return "-"
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            return str(value)
        said = f"{value:,}" if isinstance(value, int) else f"{value:,.{self.digits}f}"
        spread = None if self.spread is None else row.get(self.spread)
        return said if spread is None else f"{said} ± {spread:,.{self.digits}f}"


@dataclass(frozen=True)
class Paper:
    """A paper; id: on arXiv."""

    title: str
    id: str

    def __str__(self) -> str:
        return f"{self.title} (arXiv {self.id})"


@dataclass(frozen=True)
class Figure:
    """A number of the paper's own machine. source: the table, figure or section that says it."""

    source: str
    what: str
    value: str


@dataclass(frozen=True)
class Experiment:
    """One experiment: what it measures, and how that is shown.

    machine: of the paper; figures: what it gave there. rows: measures, point by point. charts: of
    all rows. takes: the fields of Settings, beside the common ones, that it heeds. peers: packages
    whose columns are left out where they are not installed. repeats: by default. point: fields that
    name one, where a point is measured by one way after the other and each has a row for it; they
    are one line of the table.
    """

    paper: Paper
    machine: str
    figures: tuple[Figure, ...]
    columns: tuple[Column, ...]
    rows: Callable[[Settings], Iterator[Row]]
    charts: Callable[[Sequence[Row]], Sequence[Chart | Bars]]
    takes: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    repeats: int = 3
    point: tuple[str, ...] = ()

    def add(self, row: Row, rows: list[Row]) -> None:
        """Put a row to those of before."""
        for other in rows if self.point else ():
            if all(other[key] == row[key] for key in self.point):
                other.update(row)
                return
        rows.append(row)


def say(line: str) -> None:
    """Print a note beside the table."""
    print(line, file=sys.stderr, flush=True)
