"""Hydragen's figures 3 and 4, tables 2 to 7: tokens per second from one prompt's completions.

A prompt, and as many completions of it as the batch has rows, by the ways of section 4.1: sharegen;
the prompt stored once but read by each row, as PagedAttention does; nothing shared; and no
attention at all, which is the ceiling. Only decoding is timed, as in appendix E.1. Weights are
random, and samples end at their length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from benchmarks.papers.engine_ways import WAYS, Way
from benchmarks.papers.experiment import Column, Experiment, Figure, Row, Settings, say
from benchmarks.papers.fitting import has_context, memory_of_kv, shapes_that_fit
from benchmarks.papers.hydragen import HYDRAGEN
from benchmarks.papers.hydragen_tables import PREFIXES, TABLES, cell, prefix_of
from sharegen.bench.ceiling import leave_attention_out
from sharegen.bench.decode import measure_again, rows_that_fit, run_job
from sharegen.bench.engines import Engines
from sharegen.bench.shapes import Workload
from sharegen.engine.engine import Engine
from sharegen.errors import CapacityError, UsageError
from sharegen.results.report.chart import Chart, Series

_TEMPERATURE = 0.7


@dataclass(frozen=True, order=True)
class Point:
    """A point of a figure. batch: completions of a prompt of `prefix` tokens, of `output` tokens
    each.
    """

    batch: int
    prefix: int
    output: int

    @property
    def job(self) -> Workload:
        return Workload(self.prefix, 0, 1, self.batch, self.output)


_SHAPES = ("codellama-7b", "codellama-13b", "codellama-34b")
_BATCHES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_PAPER_BATCH, _PAPER_PREFIX, _PAPER_OUTPUT = 1024, 1, 128
FIGURES = tuple(
    sorted(
        {Point(batch, PREFIXES[_PAPER_PREFIX], _PAPER_OUTPUT) for batch in _BATCHES}
        | {
            Point(_PAPER_BATCH, prefix_of(column, _PAPER_OUTPUT), _PAPER_OUTPUT)
            for column in range(len(PREFIXES))
        }
    )
)
"""The points of figures 3 and 4."""

QUICK = tuple(Point(batch, prefix, 8) for prefix in (64, 512) for batch in (4, 16))


def tables(shape: str) -> list[Point]:
    """Return the points of the tables of a shape."""
    return [
        Point(batch, prefix_of(column, output), output)
        for (name, output), (_, lines) in TABLES.items()
        if name == shape
        for batch in lines
        for column in range(len(PREFIXES))
    ]


def rows(settings: Settings) -> Iterator[Row]:
    if settings.quick and settings.tables:
        raise UsageError("--quick has a few small points: leave out --tables")
    shapes = settings.shape or _SHAPES
    without = [shape for shape in shapes if not tables(shape)]
    if settings.tables and without:
        raise UsageError(f"--tables: the paper has none of --shape {without[0]}: leave one out")
    if settings.quick:
        yield from measure(settings.shape or ("tiny",), lambda shape: QUICK, settings)
    else:
        points = tables if settings.tables else lambda shape: FIGURES
        yield from measure(shapes, points, settings)


def measure(
    shapes: Sequence[str], points: Callable[[str], Sequence[Point]], settings: Settings
) -> Iterator[Row]:
    """Measure each point by each way, one way after the other."""
    for shape in shapes_that_fit(shapes, settings):
        ranks = settings.tensor_parallel_size or 1
        engines = Engines(
            shape,
            str(settings.device),
            settings.dtype,
            ranks=ranks,
            kv_cache_memory=memory_of_kv(settings),
        )
        ways = [way for way in WAYS if way.has_attention or ranks == 1]
        if len(ways) < len(WAYS):
            say(f"{shape}: no ceiling is measured where a model is cut among GPUs")
        ours: dict[Point, float] = {}
        for way in ways:
            for point, row in _by(way, shape, points(shape), engines, settings.repeats):
                if way.key == "sharegen":
                    ours[point] = row["sharegen"]
                elif way.key == "ceiling" and point in ours:
                    row["of_ceiling"] = ours[point] / row["ceiling"]
                where = {"batch": point.batch, "prefix": point.prefix, "output": point.output}
                paper = cell(shape, point.batch, point.prefix, point.output)
                yield {"shape": shape, "ranks": ranks, **where, **row, **paper}
        del engines


def _by(
    way: Way, shape: str, points: Sequence[Point], engines: Engines, repeats: int
) -> Iterator[tuple[Point, Row]]:
    """What is measured at each point by one way; the engine is gone at the end.

    Points of which the same batch fits are measured once.
    """
    engine = engines.make(max(point.batch for point in points), way.levels, way.costs)
    if not way.has_attention:
        leave_attention_out(engine)
    measured: dict[Point, Row] = {}
    for point in points:
        what = f"{shape}, {way.name}, prefix {point.prefix:,}"
        if not has_context(engine, point.prefix + point.output, what):
            continue
        fitting = _fitting(way, point, engine)
        less: Row = {}
        if fitting != point:
            say(
                f"{what}: a batch of {point.batch:,} does not fit; the largest that does is "
                f"{fitting.batch:,}"
            )
            less[f"{way.key}_batch"] = fitting.batch
        try:
            if fitting not in measured:
                measured[fitting] = _paces(way, fitting, engine, repeats)
        except CapacityError as error:
            say(f"{what}: {error}")
            continue
        yield point, less | measured[fitting]
    if engines.ranks > 1:
        engine.close()


def _fitting(way: Way, point: Point, engine: Engine) -> Point:
    """Return the point with the largest batch that fits, at most its own."""
    most = min(rows_that_fit(engine, point.job, way.levels), engine.scheduler.max_sequences)
    return replace(point, batch=min(most, point.batch))


def _paces(way: Way, point: Point, engine: Engine, repeats: int) -> Row:
    """Return the tokens decoded a second: the mean of the runs, and their standard deviation."""
    job = point.job
    run_job(engine, job, way.levels, _TEMPERATURE)
    paces = [
        measure_again(engine, job, way.levels, _TEMPERATURE)["decode_tokens_per_second"]
        for _ in range(repeats)
    ]
    row = {way.key: fmean(paces), f"{way.key}_spread": stdev(paces) if repeats > 1 else 0.0}
    if engine.slots < point.batch:  # memory did not suffice for a step
        row[f"{way.key}_batch"] = engine.slots
    return row


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw each shape and output: over batches at one prefix, and over prefixes at one batch."""
    found = []
    for shape, output in dict.fromkeys((row["shape"], row["output"]) for row in rows):
        there = [row for row in rows if (row["shape"], row["output"]) == (shape, output)]
        for x, other in (("batch", "prefix"), ("prefix", "batch")):
            for value in dict.fromkeys(row[other] for row in there):
                line = sorted((r for r in there if r[other] == value), key=lambda r: r[x])
                if len(line) > 1:
                    found.append(_chart(f"{shape}, {output} tokens", line, x, other))
    return found


def _chart(what: str, line: Sequence[Row], x: str, other: str) -> Chart:
    value = line[0][other]
    lines = [(way.name, way.key, False) for way in WAYS]
    lines.append(("Hydragen, 8 A100 (paper)", "paper_hydragen", True))
    series = [
        Series(name, [(r[x], r[key]) for r in line if r.get(key)], dashed)
        for name, key, dashed in lines
    ]
    title = f"{what}, {other} {value:,}"
    name = f"throughput-{what.replace(', ', '-').replace(' ', '-')}-{other}-{value}"
    return Chart(name, title, x, "tokens per second", series, x_log=True)


EXPERIMENT = Experiment(
    paper=HYDRAGEN,
    machine="eight A100-40GB with tensor parallelism",
    figures=(
        Figure("figure 3", "CodeLlama-13B, prefix 2,048, 128 tokens",
               "always within 50% of the ceiling"),
        Figure("figure 4", "CodeLlama-13B, batch 1,024, prefixes of 1,024 to 16,256",
               "throughput drops by less than 15%"),
        Figure("table 4", "CodeLlama-13B, batch 1,024, prefix 1K: Hydragen, vLLM, ceiling",
               "15.6, 4.9 and 18.5 thousand tokens per second"),
        Figure("table 4", "CodeLlama-13B, batch 1,024, prefix 16K: Hydragen, vLLM, ceiling",
               "14.0, 0.4 and 18.5 thousand tokens per second"),
        Figure("tables 2 to 7", "by batch and prefix", "in the columns Hydragen and vLLM (paper)"),
    ),
    columns=(
        Column("shape", "shape"),
        Column("batch", "batch"),
        Column("prefix", "prefix"),
        Column("output", "tokens"),
        Column("sharegen", "sharegen", 0, "sharegen_spread"),
        Column("sharegen_batch", "its batch"),
        Column("each", "read by each row", 0, "each_spread"),
        Column("each_batch", "its batch"),
        Column("nothing", "nothing shared", 0, "nothing_spread"),
        Column("nothing_batch", "its batch"),
        Column("ceiling", "no attention", 0, "ceiling_spread"),
        Column("ceiling_batch", "its batch"),
        Column("of_ceiling", "of that", 2),
        Column("paper_hydragen", "Hydragen (paper)"),
        Column("paper_vllm", "vLLM (paper)"),
    ),
    rows=rows,
    charts=charts,
    takes=("shape", "tensor_parallel_size", "tables"),
    point=("shape", "batch", "prefix", "output"),
)  # fmt: skip
