"""Runs an experiment of a paper: its lines, its table, its picture, what the paper's machine gave.

A JSON line goes out as soon as its row is measured; what is for people follows on stderr, also
where the experiment does not come to its end.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.papers.experiment import Column, Experiment, Row, Settings, say
from benchmarks.papers.registry import find
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.errors import SharegenError, UsageError
from sharegen.job.interrupt import interrupts
from sharegen.results.report import figures

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_WIDTH = 400  # characters, more than any table has


def bench_paper(
    name: str,
    plot: Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    quick: bool = False,
    repeats: int | None = None,
    **options: Any,
) -> list[Row]:
    """Run the experiment of a name; returns its rows, which stdout has as JSON lines.

    plot: an .svg file. device: "auto" is CUDA where there is one; dtype: "auto" is bfloat16 there
    and float32 on a CPU. repeats: timed runs of each point, by default the experiment's. options:
    further fields of Settings, None where they are not given. Raises UsageError for a name that is
    not known, a device that is not there, an option that the experiment does not heed, and a plot
    that cannot be written.
    """
    experiment = find(name)
    for option, value in options.items():
        if value is not None and option not in experiment.takes:
            raise UsageError(f"{name} takes no --{option.replace('_', '-')}: leave it out")
    if dtype not in ("auto", *_DTYPES):
        raise UsageError(f"--dtype {dtype}: it must be auto, {', '.join(_DTYPES)}")
    if repeats is not None and repeats < 1:
        raise UsageError(f"--repeats {repeats}: it must be at least 1")
    if plot is not None:
        figures.check_plot(plot)
    place = resolve_device(device)
    if place.index is not None and place.type == "cuda":
        torch.cuda.set_device(place)  # where kernels are launched and graphs captured
    kind = "bfloat16" if place.type == "cuda" else "float32"
    settings = Settings(
        place,
        _DTYPES[kind if dtype == "auto" else dtype],
        quick,
        repeats or experiment.repeats,
        _installed(experiment),
        **options,
    )
    return _run(name, experiment, settings, plot)


def _installed(experiment: Experiment) -> frozenset[str]:
    found = {peer for peer in experiment.peers if importlib.util.find_spec(peer) is not None}
    for peer in experiment.peers:
        if peer not in found:
            say(f"{peer} is not installed: its column is left out")
    return frozenset(found)


def _run(name: str, experiment: Experiment, settings: Settings, plot: Path | None) -> list[Row]:
    is_gpu = settings.device.type == "cuda"
    where = {
        "device": torch.cuda.get_device_name(settings.device) if is_gpu else "cpu",
        "dtype": str(settings.dtype).removeprefix("torch."),
        "quick": settings.quick,
    }
    rows: list[Row] = []
    with interrupts():
        try:
            for row in experiment.rows(settings):
                print(json.dumps({"bench": "paper", "name": name, **where, **row}), flush=True)
                experiment.add(row, rows)
        finally:
            if rows:
                _show(experiment, rows, plot)
    if not rows:
        raise SharegenError(f"{name}: there is nothing that could be measured here")
    return rows


def _show(experiment: Experiment, rows: Sequence[Row], plot: Path | None) -> None:
    # A line of the table is one line, however wide the terminal.
    Console(file=sys.stderr, highlight=False, width=_WIDTH).print(_table(experiment.columns, rows))
    for line in _said(experiment):
        say(line)
    if plot is not None:
        drawn = [chart.picture() for chart in experiment.charts(rows)]
        for path in figures.save(drawn, plot):
            say(f"written: {path}")


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    shown = [column for column in columns if any(row.get(column.key) is not None for row in rows)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in shown:
        is_text = all(isinstance(row.get(column.key), str | None) for row in rows)
        table.add_column(column.heading, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(column.text(row) for column in shown))
    return table


def _said(experiment: Experiment) -> list[str]:
    head = f"{experiment.paper} gives, of {experiment.machine}:"
    return [head, *(f"  {said.source}: {said.what}: {said.value}" for said in experiment.figures)]
