"""A whole evaluation by how much is shared and how large the batch is: figure 7, table 1.

First by one way at its batch, then with all levels shared at the same batch, then with the larger
one that this leaves memory for, as in section 4.4. The time is that of the whole job, prompts and
all. Weights are random, and samples end at their length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from benchmarks.graphs import ready_for
from benchmarks.papers.experiment import Column, Row, Settings, say
from sharegen.bench.decode import MOST_ROWS, rows_that_fit, run_job
from sharegen.bench.engines import Engines
from sharegen.bench.shapes import Workload
from sharegen.engine.engine import Engine
from sharegen.results.report.chart import Bars

ALL_LEVELS = 2
LEVELS = ("nothing shared", "one level shared", "two levels shared")
QUICK_MEMORY = 1 << 20  # bytes of KV cache, so that it is scarce at the quick size, too
_TEMPERATURE = 0.7
_WARM_UP = 8  # tokens of each sample

COLUMNS = (
    Column("shape", "shape"),
    Column("way", "way"),
    Column("batch", "batch"),
    Column("seconds", "seconds", 2, "seconds_spread"),
    Column("tokens_per_second", "tokens/s"),
    Column("speedup", "times as fast", 2),
)


@dataclass(frozen=True)
class Evaluation:
    """An experiment's evaluation. levels: of the first way; batch: of it, as many as fit where it
    is None.
    """

    shape: str
    job: Workload
    levels: int
    batch: int | None
    kv_cache_memory: int | None = None


def evaluate(evaluation: Evaluation, settings: Settings) -> Iterator[Row]:
    """A row for each of the three runs; speedup: against the first."""
    engines = Engines(
        evaluation.shape, str(settings.device), settings.dtype,
        ranks=settings.tensor_parallel_size or 1, kv_cache_memory=evaluation.kv_cache_memory,
    )  # fmt: skip
    all_rows = evaluation.job.problems * evaluation.job.samples
    most = min(MOST_ROWS, all_rows)
    asked = min(evaluation.batch or most, most)
    batch = _largest(engines, evaluation, evaluation.levels, asked)
    if evaluation.batch is not None and batch < asked:
        say(
            f"{evaluation.shape}, {LEVELS[evaluation.levels]}: a batch of {asked:,} does not fit; "
            f"the largest that does is {batch:,}"
        )
    larger = _largest(engines, evaluation, ALL_LEVELS, most)
    first = None
    for levels, rows in ((evaluation.levels, batch), (ALL_LEVELS, batch), (ALL_LEVELS, larger)):
        times, tokens = _timed(engines, evaluation.job, levels, rows, settings.repeats)
        seconds = fmean(times)
        first = first or seconds
        yield {
            "shape": evaluation.shape,
            "ranks": engines.ranks,
            "problems": evaluation.job.problems,
            "samples": evaluation.job.samples,
            "way": LEVELS[levels],
            "levels": levels,
            "batch": rows,
            "seconds": seconds,
            "seconds_spread": stdev(times) if len(times) > 1 else 0.0,
            "tokens_per_second": tokens / seconds,
            "speedup": first / seconds,
        }


def bars(rows: Sequence[Row]) -> list[Bars]:
    """The seconds of each shape's runs."""
    found = []
    for shape in dict.fromkeys(row["shape"] for row in rows):
        named = [
            (f"{row['way']}, batch {row['batch']:,}", row["seconds"])
            for row in rows
            if row["shape"] == shape
        ]
        found.append(Bars(f"seconds-{shape}", f"{shape}: the whole job", "seconds", named))
    return found


def _largest(engines: Engines, evaluation: Evaluation, levels: int, asked: int) -> int:
    """Rows that fit together, at most those asked for."""
    engine = engines.make(asked, levels)
    enough = min(evaluation.job.problems, math.ceil(asked / evaluation.job.samples))
    job = replace(evaluation.job, problems=enough)
    found = min(rows_that_fit(engine, job, levels), engine.scheduler.max_sequences)
    _end(engine, engines)
    return min(found, asked)


def _timed(
    engines: Engines, job: Workload, levels: int, rows: int, repeats: int
) -> tuple[list[float], int]:
    """Seconds of each run of the job, and the tokens of one."""
    engine = engines.make(rows, levels)
    few = min(job.problems, math.ceil(rows / job.samples) + 1)
    ready_for(engine, job.output)
    run_job(engine, replace(job, problems=few, output=_WARM_UP), levels, _TEMPERATURE)
    runs = [run_job(engine, job, levels, _TEMPERATURE) for _ in range(repeats)]
    _end(engine, engines)
    return [seconds for seconds, _ in runs], runs[0][1]


def _end(engine: Engine, engines: Engines) -> None:
    if engines.ranks > 1:
        engine.close()
