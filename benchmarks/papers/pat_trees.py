"""PAT's kernel benchmark: 20 trees by 4 kinds of heads, as its public repository has them.

benchmark/run_kernel_bench.sh at github.com/flashserve/PAT names the trees as nodes of each level,
then tokens of each node: the last level are the requests, with tokens of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.papers.experiment import Column, Experiment, Figure, Paper, Row, Settings
from benchmarks.papers.layer_ways import COLUMNS, WAYS, WORK, measure_layer
from sharegen.bench.attention_case import Tree
from sharegen.bench.peer import FlashInfer
from sharegen.bench.timer import timer_of
from sharegen.results.report.chart import Chart, Series

TREES = (
    ((1, 10), (4096, 416)),
    ((1, 256), (256, 32)),
    ((1, 1024), (2048, 32)),
    ((1, 2, 64), (1024, 256, 256)),
    ((1, 4, 256), (32, 256, 32)),
    ((1, 8, 512), (32, 512, 256)),
    ((1, 8, 512), (32, 2048, 256)),
    ((1, 8, 512), (512, 512, 256)),
    ((1, 4, 8, 256), (32, 256, 256, 32)),
    ((1, 4, 16, 512), (1024, 256, 128, 32)),
    ((1, 4, 16, 64, 256, 1024), (256, 32, 256, 64, 32, 256)),
    ((1, 16, 32, 64, 128, 1024), (256, 128, 64, 32, 32, 32)),
    ((1, 16, 32, 64, 256, 1024), (256, 128, 64, 32, 32, 32)),
    ((1, 8, 16, 32, 64, 128, 1024), (256, 128, 64, 32, 32, 32, 32)),
    ((1, 8, 16, 32, 64, 256, 1024), (256, 128, 64, 32, 32, 32, 32)),
    ((2, 8, 16, 256), (256, 256, 32, 32)),
    ((4, 16, 256, 512), (512, 32, 128, 32)),
    ((8, 16, 32, 256), (512, 512, 256, 32)),
    ((256,), (1024,)),
    ((256,), (4096,)),
)
"""(nodes of each level, tokens of each of its nodes), in the order of the benchmark."""

HEADS = ((32, 32), (16, 8), (32, 8), (64, 8))
_QUICK_ROWS = 32


@dataclass(frozen=True)
class Levels(Tree):
    """The levels of a tree. nodes: of each level, the rows last; tokens: of each node above the
    rows, by level.
    """

    num_heads: int
    num_kv_heads: int
    nodes: tuple[int, ...]
    tokens: tuple[int, ...]
    suffix: int
    head_size: int = 128
    fp8: bool = False

    @property
    def rows(self) -> int:
        return self.nodes[-1]

    @property
    def levels(self) -> tuple[tuple[int, int], ...]:
        return tuple(zip(self.nodes, self.tokens, strict=False))

    def __str__(self) -> str:
        nodes, tokens = (",".join(map(str, of)) for of in (self.nodes, (*self.tokens, self.suffix)))
        return f"{self.num_heads}/{self.num_kv_heads} {nodes}_{tokens}"

    def smaller(self) -> Levels:
        """The tree with few rows and tokens: what a CPU computes in milliseconds."""
        by = max(1, self.rows // _QUICK_ROWS)
        return replace(
            self,
            num_heads=self.num_heads // 8,
            num_kv_heads=self.num_kv_heads // 8,
            nodes=tuple(max(1, count // by) for count in self.nodes),
            tokens=tuple(length // 8 for length in self.tokens),
            suffix=self.suffix // 8,
            head_size=32,
        )


def rows(settings: Settings) -> Iterator[Row]:
    return measure(TREES, HEADS, settings)


def measure(
    trees: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
    heads: Sequence[tuple[int, int]],
    settings: Settings,
) -> Iterator[Row]:
    """A row for each tree by each kind of heads that there is room for."""
    timer, peer = timer_of(settings.device), FlashInfer("flashinfer" in settings.peers)
    for q, kv in heads:
        for number, (nodes, tokens) in enumerate(trees, 1):
            case = Levels(q, kv, nodes, tokens[:-1], tokens[-1])
            case = case.smaller() if settings.quick else case
            found = measure_layer(case, timer, settings, peer)
            if found is not None:
                kind, tree = str(case).split()
                where = {"heads": kind, "number": number, "tree": tree, "rows": case.rows}
                yield where | found


def charts(rows: Sequence[Row]) -> list[Chart]:
    """Draw microseconds by tree: a picture for each kind of heads."""
    found = []
    for heads in dict.fromkeys(row["heads"] for row in rows):
        there = [row for row in rows if row["heads"] == heads]
        series = [
            Series(heading, [(row["number"], row[way]) for row in there if row.get(way)])
            for way, heading in ((f"{way}_us", heading) for way, heading in WAYS.items())
        ]
        name = f"pat-trees-{heads.replace('/', '-')}"
        found.append(Chart(name, f"{heads} heads", "tree", "microseconds", series, y_log=True))
    return found


EXPERIMENT = Experiment(
    paper=Paper(
        "PAT: Accelerating LLM Decoding via Prefix-Aware Attention with Resource Efficient "
        "Multi-Tile Kernel",
        "2511.22333",
    ),
    machine="one A100-80GB (the benchmark's own; FP16, head size 128)",
    figures=(
        Figure("abstract", "attention's time, beside other kernels", "53.5% less on average"),
    ),
    columns=(
        Column("heads", "heads"),
        Column("number", "no."),
        Column("tree", "nodes_tokens by level"),
        Column("rows", "rows"),
        *COLUMNS,
        *WORK,
    ),
    rows=rows,
    charts=charts,
    peers=("flashinfer",),
    repeats=15,
)
