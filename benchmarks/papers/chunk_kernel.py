"""ChunkAttention's kernel: tables 1 and 3, figures 3 and 4.

Sequences of 32 heads on 32 decode behind a prefix that all of them share; what a prompt has beyond
it, and the completion, is each one's own. The rate of figures 3 and 4 is that of the kernel alone:
tokens of the whole batch by the time that all steps up to there take, with the times between two
measured lengths on a line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.papers.chunk import CHUNK_ATTENTION
from benchmarks.papers.experiment import Column, Experiment, Figure, Row, Settings
from benchmarks.papers.layer_ways import COLUMNS, WAYS, WORK, measure_layer
from sharegen.bench.attention_case import Case
from sharegen.bench.peer import FlashInfer
from sharegen.bench.timer import timer_of
from sharegen.results.report.chart import Chart, Series


@dataclass(frozen=True)
class Points:
    """What is measured, by the table and figure of the paper.

    shape: heads and head size, whatever the lengths. table_1: (batch, context), nothing shared.
    table_3: (prompt, shared tokens of it), at `batch`. figure_3: prompts, all of them shared, and
    completions. figure_4: batches at `prompt` shared tokens, up to so many completion tokens.
    """

    shape: Case
    batch: int
    table_1: Sequence[tuple[int, int]]
    table_3: Sequence[tuple[int, int]]
    prompts: Sequence[int]
    completions: Sequence[int]
    batches: Sequence[int]
    prompt: int
    completion: int

    def case(self, batch: int, shared: int, own: int) -> Case:
        return replace(self.shape, few=shared, samples=batch, suffix=own)


FULL = Points(
    shape=Case(32, 32, 0, 0, 1, 1, 1),
    batch=32,
    table_1=((1, 2048), (32, 2048), (64, 2048)),
    table_3=tuple((n, n * s // 4) for n in (1024, 2048, 4096) for s in (0, 2, 3, 4)),
    prompts=(1024, 2048, 4096),
    completions=(64, 128, 256, 512, 1024, 1536, 2048),
    batches=(1, 2, 4, 8, 16, 32, 48, 64, 80, 96),
    prompt=2048,
    completion=64,
)
QUICK = Points(
    shape=Case(8, 8, 0, 0, 1, 1, 1, head_size=64),
    batch=16,
    table_1=((1, 512), (16, 512)),
    table_3=((512, 0), (512, 256), (512, 512)),
    prompts=(256, 1024),
    completions=(16, 64, 128),
    batches=(1, 4, 16, 32),
    prompt=512,
    completion=16,
)


def rows(settings: Settings) -> Iterator[Row]:
    return measure(QUICK if settings.quick else FULL, settings)


def measure(points: Points, settings: Settings) -> Iterator[Row]:
    """A row for each point of each table and figure that there is room for."""
    timer, peer = timer_of(settings.device), FlashInfer("flashinfer" in settings.peers)

    def step(part: str, batch: int, prompt: int, shared: int, completion: int) -> Row | None:
        found = measure_layer(
            points.case(batch, shared, prompt - shared + completion), timer, settings, peer
        )
        where = {"part": part, "batch": batch, "prompt": prompt, "shared": shared}
        return None if found is None else {**where, "completion": completion, **found}

    def rates(part: str, batch: int, prompt: int, completions: Sequence[int]) -> Iterator[Row]:
        steps = [step(part, batch, prompt, prompt, n) for n in (1, *completions)]
        yield from with_rates([row for row in steps if row is not None])

    for batch, context in points.table_1:
        yield from _there(step("table 1", batch, context, 0, 0))
    for prompt, shared in points.table_3:
        # The token that is decoded is the row's own.
        yield from _there(step("table 3", points.batch, prompt, shared, 1))
    for prompt in points.prompts:
        yield from rates("figure 3", points.batch, prompt, points.completions)
    for batch in points.batches:
        yield from rates("figure 4", batch, points.prompt, (points.completion,))


def _there(row: Row | None) -> list[Row]:
    return [] if row is None else [row]


def with_rates(steps: Sequence[Row]) -> Iterator[Row]:
    """Yield all steps but the first, each with the tokens a second up to it, by way.

    A way has no more rates from a step on that it has no time for.
    """
    seconds = dict.fromkeys(WAYS, 0.0)
    for before, row in pairwise(steps):
        for way in list(seconds):
            first, last = before.get(f"{way}_us"), row.get(f"{way}_us")
            if first is None or last is None:
                del seconds[way]
                continue
            tokens = row["completion"] - before["completion"]
            seconds[way] += 1e-6 * tokens * (first + last) / 2
            done = row["batch"] * (row["completion"] - steps[0]["completion"])
            row[f"{way}_rate"] = done / seconds[way]
        yield row


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw figures 3 and 4: tokens a second over completion tokens, and over the batch."""
    found = []
    third = [row for row in rows if row["part"] == "figure 3"]
    for prompt in dict.fromkeys(row["prompt"] for row in third):
        there = [row for row in third if row["prompt"] == prompt]
        title = f"{prompt:,} shared tokens"
        found.append(_chart(f"figure-3-{prompt}", title, "completion", "completion tokens", there))
    fourth = [row for row in rows if row["part"] == "figure 4"]
    if fourth:
        title = f"{fourth[0]['shared']:,} shared tokens, {fourth[0]['completion']} of completion"
        found.append(_chart("figure-4", title, "batch", "batch", fourth))
    return found


def _chart(name: str, title: str, x: str, label: str, rows: Sequence[Row]) -> Chart:
    series = []
    for way, heading in WAYS.items():
        points = [(row[x], row[f"{way}_rate"]) for row in rows if row.get(f"{way}_rate")]
        series.append(Series(heading, points))
    return Chart(name, title, label, "tokens a second of one layer", series)


_TABLE_3 = (
    (1024, 0, "363.35, 378.19, 1586.73, 356.17, 355.82, 332.50"),
    (1024, 512, "364.73, 385.79, 1587.14, 355.88, 257.74, 198.87"),
    (1024, 768, "362.43, 378.50, 1591.61, 356.02, 215.18, 131.21"),
    (1024, 1024, "361.76, 379.36, 1586.90, 355.44, 154.46, 56.00"),
    (2048, 0, "686.40, 816.44, 3175.25, 702.98, 703.50, 655.44"),
    (2048, 1024, "687.52, 828.76, 3173.53, 703.35, 505.32, 384.37"),
    (2048, 1536, "685.78, 820.19, 3174.96, 702.90, 421.25, 247.14"),
    (2048, 2048, "688.41, 823.60, 3152.25, 703.72, 338.41, 110.48"),
    (4096, 0, "1369.52, 1720.00, 6289.55, 1400.61, 1400.17, 1301.78"),
    (4096, 2048, "1370.47, 1722.42, 6303.21, 1400.99, 998.78, 747.56"),
    (4096, 3072, "1369.74, 1725.57, 6301.41, 1400.30, 828.98, 477.66"),
    (4096, 4096, "1370.41, 1713.13, 6300.65, 1399.51, 663.84, 206.22"),
)
_KERNELS = "Naive, xformers, FlashAttn, PagedAttn, PagedAttn*, ChunkAttn"

EXPERIMENT = Experiment(
    paper=CHUNK_ATTENTION,
    machine="one A100-80GB, FP16, 32 heads on 32, head size 128, chunks of 64",
    figures=(
        Figure(
            "table 1", "batch 1: 10^6 FLOPs, 10^6 bytes, intensity, us", "33.57, 33.85, 0.99, 17.82"
        ),
        Figure("table 1", "batch 32", "1074.27, 1083.18, 0.99, 687.74"),
        Figure("table 1", "batch 64", "2148.53, 2166.36, 0.99, 1358.40"),
        Figure(
            "table 3",
            "its columns",
            f"{_KERNELS} (headed ms; us by table 1 and the rates of figures 3 and 4)",
        ),
        *(
            Figure("table 3", f"prompt {prompt:,}, shared {shared:,}", numbers)
            for prompt, shared, numbers in _TABLE_3
        ),
        Figure(
            "figure 3 (section 4.1)",
            "2,048 shared, 512 of completion: PagedAttn*, ChunkAttn",
            "73K, 145K tokens/s",
        ),
        Figure(
            "figure 3 (section 4.1)",
            "2,048 shared, 2,048 of completion: PagedAttn*, ChunkAttn",
            "46K, 70K tokens/s",
        ),
        Figure(
            "figure 4 (section 4.1)",
            "2,048 shared, 64 of completion, batch 16 and 96: ChunkAttn",
            "155K, 224K tokens/s",
        ),
    ),
    columns=(
        Column("part", "as in"),
        Column("batch", "batch"),
        Column("prompt", "prompt"),
        Column("shared", "shared"),
        Column("completion", "completion"),
        *COLUMNS,
        *(Column(f"{way}_rate", f"{heading} tok/s") for way, heading in WAYS.items()),
        *WORK,
    ),
    rows=rows,
    charts=charts,
    peers=("flashinfer",),
    repeats=15,
)
