"""PagedAttention's swapping against recomputation, by block size and length.

The measurement is that of `python -m benchmarks preempt`: the microbenchmark of the paper, with a
third way beside its two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.papers.experiment import Column, Experiment, Figure, Row, Settings
from benchmarks.papers.fitting import shapes_that_fit
from benchmarks.papers.paged import PAGED_ATTENTION
from benchmarks.preempt import check
from benchmarks.preempt import measure as costs_of
from sharegen.bench.shapes import random_model
from sharegen.engine.model.load import load_model
from sharegen.results.report.chart import Chart, Series
from sharegen.workload.recipe import RECIPES


@dataclass(frozen=True)
class Sweep:
    """The points of an experiment. lengths: tokens that a preempted sample has; rows: that decode
    while it feeds them again.
    """

    shape: str
    blocks: Sequence[int]
    lengths: Sequence[int]
    rows: int


FULL = Sweep("codellama-13b", (1, 2, 4, 8, 16, 32, 64, 128, 256), (256, 1024), 16)
QUICK = Sweep(str(RECIPES / "tinymath" / "model"), (1, 16, 256), (64, 256), 16)


def rows(settings: Settings) -> Iterator[Row]:
    return measure(QUICK if settings.quick else FULL, settings)


def measure(sweep: Sweep, settings: Settings) -> Iterator[Row]:
    """Measure each block size and length: milliseconds of each way."""
    for shape in shapes_that_fit(settings.shape or (sweep.shape,), settings):
        model = load_model(random_model(shape, settings.device, settings.dtype))
        check(model, shape, sweep.lengths)
        for costs in costs_of(
            model, sweep.blocks, sweep.lengths, rows=sweep.rows, repeats=settings.repeats
        ):
            yield {
                "shape": shape.rstrip("/").rsplit("/", 1)[-1],
                "block": costs.block_size,
                "tokens": costs.tokens,
                "out_ms": costs.swap_out_ms,
                "in_ms": costs.swap_in_ms,
                "one_pass_ms": costs.one_pass_ms,
                "replay_ms": costs.replay_ms,
                "cheapest": costs.cheapest,
            }


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw the milliseconds of each way over the size of a block, a picture for each length."""
    ways = {
        "swap out": "out_ms",
        "swap in": "in_ms",
        "one pass": "one_pass_ms",
        "replay": "replay_ms",
    }
    found = []
    for shape, tokens in dict.fromkeys((row["shape"], row["tokens"]) for row in rows):
        there = [row for row in rows if (row["shape"], row["tokens"]) == (shape, tokens)]
        lines = [Series(way, [(r["block"], r[key]) for r in there]) for way, key in ways.items()]
        title, name = f"A sample of {tokens:,} tokens, {shape}", f"preempt-{shape}-{tokens}"
        found.append(Chart(name, title, "tokens of a block", "ms", lines, x_log=True, y_log=True))
    return found


EXPERIMENT = Experiment(
    paper=PAGED_ATTENTION,
    machine="NVIDIA A100, swapping against recomputation in one pass",
    figures=(
        Figure("recomputation and swapping", "small blocks", "swapping has excessive overhead"),
        Figure("recomputation and swapping", "recomputation", "the same at every block size"),
        Figure("recomputation and swapping", "recomputation", "never above 20% of swapping's"),
        Figure("recomputation and swapping", "blocks of 16 to 64", "end to end the two are alike"),
    ),
    columns=(
        Column("shape", "shape"),
        Column("block", "block"),
        Column("tokens", "tokens"),
        Column("out_ms", "swap out ms", 3),
        Column("in_ms", "swap in ms", 3),
        Column("one_pass_ms", "one pass ms", 3),
        Column("replay_ms", "replay ms", 3),
        Column("cheapest", "cheapest"),
    ),
    rows=rows,
    charts=charts,
    takes=("shape",),
    repeats=5,
)
