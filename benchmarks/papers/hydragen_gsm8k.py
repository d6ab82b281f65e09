"""Hydragen's table 1: GSM8K's test set by self-consistency, eight examples and 40 samples.

The paper does not say how long its prompts and completions are: the examples have 1,024 tokens
here, problems 96 and completions 128, as in `bench decode --workload gsm8k`. The first batch is the
paper's. `--problems` takes fewer than the 1,319 of the test set.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.papers.evaluation import COLUMNS, QUICK_MEMORY, Evaluation, bars, evaluate
from benchmarks.papers.experiment import Experiment, Figure, Row, Settings
from benchmarks.papers.fitting import shapes_that_fit
from benchmarks.papers.hydragen import HYDRAGEN
from sharegen.bench.shapes import WORKLOADS, Workload

_JOB = replace(WORKLOADS["gsm8k"], problems=1319, samples=40)
_QUICK = Workload(prefix=160, problem=16, problems=6, samples=8, output=16)
_BATCHES = {"llama2-7b": 360, "llama2-13b": 240}
"""Batch sizes of the paper's runs with nothing shared."""


def rows(settings: Settings) -> Iterator[Row]:
    job, memory = (_QUICK, QUICK_MEMORY) if settings.quick else (_JOB, None)
    if settings.problems is not None:
        job = replace(job, problems=settings.problems)
    shapes = settings.shape or (("tiny",) if settings.quick else tuple(_BATCHES))
    for shape in shapes_that_fit(shapes, settings):
        yield from evaluate(Evaluation(shape, job, 0, _BATCHES.get(shape), memory), settings)


def _figure(model: str, algorithm: str, batch: str, minutes: str, speedup: str) -> Figure:
    return Figure("table 1", f"{model}, {algorithm}, batch {batch}",
                  f"{minutes} minutes, {speedup} times as fast")  # fmt: skip


EXPERIMENT = Experiment(
    paper=HYDRAGEN,
    machine="a machine that table 1 does not name",
    figures=(
        _figure("Llama-2-7B-chat", "FlashAttention", "360", "41.63", "1"),
        _figure("Llama-2-7B-chat", "Hydragen", "360", "28.39", "1.47"),
        _figure("Llama-2-7B-chat", "Hydragen", "1,200", "19.94", "2.09"),
        _figure("Llama-2-13B-chat", "FlashAttention", "240", "70.49", "1"),
        _figure("Llama-2-13B-chat", "Hydragen", "240", "51.31", "1.37"),
        _figure("Llama-2-13B-chat", "Hydragen", "720", "32.88", "2.14"),
    ),
    columns=COLUMNS,
    rows=rows,
    charts=bars,
    takes=("shape", "tensor_parallel_size", "problems"),
    repeats=1,
)
