"""Hydragen's figures 5 and 8: one layer of decode attention by batch, prefix and suffix length.

Each point is a prefix that all rows share and a suffix of each. The paper has 8 query heads on one
(CodeLlama-34B on eight GPUs); 32 on 8 and 32 on 32 stand beside it. At a suffix of 0 the prefix
alone is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev

from benchmarks.papers.experiment import Column, Experiment, Figure, Row, Settings, say
from benchmarks.papers.hydragen import HYDRAGEN
from benchmarks.papers.layer_ways import times_of
from sharegen.bench.attention_case import Case
from sharegen.bench.layer import Layer, Step, has_room_apart, nothing_shared
from sharegen.bench.peer import FlashInfer
from sharegen.bench.timer import timer_of
from sharegen.errors import CapacityError
from sharegen.results.report.chart import Chart, Series


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep. heads: query heads and key heads. Every combination is a point."""

    heads: Sequence[tuple[int, int]]
    batches: Sequence[int]
    prefixes: Sequence[int]
    suffixes: Sequence[int]
    head_size: int = 128

    def cases(self) -> Iterator[Case]:
        for q, kv in self.heads:
            for suffix in self.suffixes:
                for prefix in self.prefixes:
                    for batch in self.batches:
                        yield Case(q, kv, prefix, 0, 1, batch, suffix, head_size=self.head_size)


FULL = Sweep(
    ((8, 1), (32, 8), (32, 32)),
    (16, 64, 256, 1024, 4096),
    (1024, 2048, 4096, 8192, 16_384),
    (0, 64, 256),
)
QUICK = Sweep(((8, 1), (4, 4)), (4, 64), (128, 2048), (0, 16), head_size=32)


def rows(settings: Settings) -> Iterator[Row]:
    return measure(QUICK if settings.quick else FULL, settings)


def measure(sweep: Sweep, settings: Settings) -> Iterator[Row]:
    """Measure each case: microseconds of a layer by each way, and how many times as fast.

    A batch that does not fit is halved until it does. error, each_error: the largest of some rows,
    against float32.
    """
    timer, flashinfer = timer_of(settings.device), FlashInfer("flashinfer" in settings.peers)

    def timed(way: str, case: Case, step: Callable[[], Step | None]) -> Row:
        times = times_of(step, f"{case}, {way}", timer, settings.repeats)
        if times is None:
            return {}
        spread = stdev(times) if len(times) > 1 else 0.0
        return {f"{way}_us": fmean(times), f"{way}_spread": spread}

    for case in sweep.cases():
        case, layer = _fitting(case, settings)
        row: Row = {
            "heads": f"{case.num_heads}/{case.num_kv_heads}",
            "batch": case.rows,
            "prefix": case.few,
            "suffix": case.suffix,
        }
        row |= timed("sharegen", case, layer.read_once)
        row["error"] = layer.tensors.error()
        row |= timed("each", case, layer.read_by_each)
        row["each_error"] = layer.tensors.error()
        if case.suffix:  # FlashInfer's plan of the suffixes takes no empty ones
            row |= timed("flashinfer", case, partial(flashinfer.step, layer))
        del layer
        apart = replace(case, samples=_most_apart(case, settings))
        where = (settings.device, settings.dtype)
        row |= timed("nothing", case, partial(nothing_shared, apart, *where))
        if apart.rows < case.rows:
            row["nothing_batch"] = apart.rows
        elif "nothing_us" in row and "sharegen_us" in row:
            row["speedup"] = row["nothing_us"] / row["sharegen_us"]
        yield row


def _fitting(case: Case, settings: Settings) -> tuple[Case, Layer]:
    """A case and its layer, or those of the largest half, quarter, ... of its batch that fits.

    Raises CapacityError where not even a single row does.
    """
    try:
        return case, Layer(case, settings.device, settings.dtype)
    except CapacityError as error:
        if case.rows == 1:
            raise
        say(f"{error}: a batch of {case.rows // 2:,} is tried")
        return _fitting(replace(case, samples=case.rows // 2), settings)


def _most_apart(case: Case, settings: Settings) -> int:
    """Rows with nothing shared: half, a quarter, ... of those that have no room; at least one."""
    apart = case
    while apart.rows > 1 and not has_room_apart(apart, settings.device, settings.dtype):
        apart = replace(apart, samples=apart.rows // 2)
    if apart.rows < case.rows:
        said = f"a batch of {case.rows:,} does not fit; one of {apart.rows:,} does"
        say(f"{case}, nothing shared: {said}")
    return apart.rows


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw how many times as fast as nothing shared, over the batch: a picture for each kind of
    heads.
    """
    found = []
    for heads in dict.fromkeys(row["heads"] for row in rows):
        for suffix in dict.fromkeys(row["suffix"] for row in rows):
            there = [r for r in rows if (r["heads"], r["suffix"]) == (heads, suffix)]
            series = [
                Series(
                    f"prefix {prefix:,}",
                    [
                        (r["batch"], r["speedup"])
                        for r in there
                        if r["prefix"] == prefix and "speedup" in r
                    ],
                )
                for prefix in dict.fromkeys(r["prefix"] for r in there)
            ]
            title = f"{heads} heads, suffix of {suffix}"
            name = f"attention-{heads.replace('/', '-')}-{suffix}"
            label = "times as fast as nothing shared"
            found.append(Chart(name, title, "batch", label, series, x_log=True))
    return found


EXPERIMENT = Experiment(
    paper=HYDRAGEN,
    machine="one A100-40GB, 8 query heads on 1, head size 128, against FlashAttention",
    figures=(
        Figure("section 1", "batch 4K, prefix 8K", "more than 12 times as fast"),
        Figure("appendix D.2", "an H100 (figure 8, left)", "about as many times as on the A100"),
        Figure("section 4.2", "prefix 1K, batch 16 or less", "slower than FlashAttention"),
    ),
    columns=(
        Column("heads", "heads"),
        Column("batch", "batch"),
        Column("prefix", "prefix"),
        Column("suffix", "suffix"),
        Column("sharegen_us", "sharegen us", 1, "sharegen_spread"),
        Column("each_us", "read by each row us", 1, "each_spread"),
        Column("flashinfer_us", "FlashInfer us", 1, "flashinfer_spread"),
        Column("nothing_us", "nothing shared us", 1, "nothing_spread"),
        Column("nothing_batch", "its batch"),
        Column("speedup", "times as fast", 2),
    ),
    rows=rows,
    charts=charts,
    peers=("flashinfer",),
    repeats=15,
)
