"""Hydragen's figure 7: programs for competition problems, with one level shared and with two.

Two examples of 2,400 tokens together before 120 problems, 128 programs of 512 tokens for each. The
paper does not say how long its problems are: these have 512 tokens. `--problems` takes fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.papers.evaluation import COLUMNS, QUICK_MEMORY, Evaluation, bars, evaluate
from benchmarks.papers.experiment import Experiment, Figure, Row, Settings
from benchmarks.papers.fitting import shapes_that_fit
from benchmarks.papers.hydragen import HYDRAGEN
from sharegen.bench.shapes import Workload

_ONE_LEVEL = 1
_JOB = Workload(prefix=2400, problem=512, problems=120, samples=128, output=512)
_QUICK = Workload(prefix=240, problem=48, problems=6, samples=8, output=16)


def rows(settings: Settings) -> Iterator[Row]:
    job, memory = (_QUICK, QUICK_MEMORY) if settings.quick else (_JOB, None)
    if settings.problems is not None:
        job = replace(job, problems=settings.problems)
    shapes = settings.shape or ("tiny" if settings.quick else "codellama-7b",)
    for shape in shapes_that_fit(shapes, settings):
        yield from evaluate(Evaluation(shape, job, _ONE_LEVEL, None, memory), settings)


EXPERIMENT = Experiment(
    paper=HYDRAGEN,
    machine="CodeLlama-7B on eight A100-40GB with tensor parallelism",
    figures=(
        Figure("section 4.4", "a second level at the same batch", "18% less time"),
        Figure("section 4.4", "then the larger batch that it allows", "another 45% less"),
        Figure("figure 7", "two levels against one, in all", "55% less time"),
    ),
    columns=COLUMNS,
    rows=rows,
    charts=bars,
    takes=("shape", "tensor_parallel_size", "problems"),
    repeats=1,
)
