"""Ten shapes that people sample from, each against its own ceiling.

The weights are random, the configs are the public ones. A row runs a job, times the parts of a
step, and runs the job once more with attention replaced by a copy, all in one start. Models of
experts run the workload `few` as well, of whose 32 sequences an expert gets a row or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.card.rows import FP8, SHAPES, CardRow


@dataclass(frozen=True)
class Shape:
    """A shape. title: as its makers write it. gib: of memory that a GPU must have for 1,024
    sequences of gsm8k in bfloat16, or nearly as many. start, seconds: what the start of its engine,
    and a job of gsm8k with its ceiling take on an H100, estimated. has_fp8: whether there is a row
    with FP8 weights, too.
    """

    name: str
    title: str
    gib: int
    start: int
    seconds: int
    has_experts: bool = False
    has_fp8: bool = True


SHAPE_TABLE = (
    Shape("llama3.2-1b", "Llama-3.2-1B", 20, 30, 25),
    Shape("qwen3-8b", "Qwen3-8B", 60, 45, 70),
    Shape("qwen3-30b-a3b", "Qwen3-30B-A3B", 78, 65, 75, has_experts=True),
    Shape("gpt-oss-20b", "gpt-oss-20b", 70, 55, 75, has_experts=True, has_fp8=False),
    Shape("glm-4.7-flash", "GLM-4.7-Flash", 78, 75, 95, has_experts=True, has_fp8=False),
    Shape("gemma-3-12b", "Gemma-3-12B", 60, 60, 100),
    Shape("mistral-small-24b", "Mistral-Small-24B", 78, 55, 130),
    Shape("phi-4", "Phi-4", 60, 50, 95),
    Shape("qwen3.5-9b", "Qwen3.5-9B", 60, 70, 75),
    Shape("deepseek-v2-lite", "DeepSeek-V2-Lite", 60, 60, 75, has_experts=True, has_fp8=False),
)

_FEW_SECONDS = 30  # of the workload `few` with its ceiling


def _rows() -> Iterator[CardRow]:
    for shape in SHAPE_TABLE:
        yield from _of(shape)
    for shape in SHAPE_TABLE:
        if shape.has_fp8:
            yield _row(shape, "gsm8k", shape.seconds, FP8, "FP8")


def _of(shape: Shape) -> Iterator[CardRow]:
    yield _row(shape, "gsm8k", shape.seconds)
    if shape.has_experts:
        yield _row(shape, "few", _FEW_SECONDS)


def _row(
    shape: Shape, workload: str, seconds: int, more: tuple[str, ...] = (), precision: str = "bf16"
) -> CardRow:
    engine = ("bench", "decode", "--shape", f"{SHAPES}/{shape.name}", "--ceiling", *more)
    return CardRow(
        f"{shape.name}-{workload}-{precision.lower()}-ceiling", "ceiling", engine, shape.start,
        seconds, shape.name, "FP8" if more else "bf16", gib=shape.gib, workload=workload,
    )  # fmt: skip


POPULAR: tuple[CardRow, ...] = tuple(_rows())
"""Their rows: all of bfloat16 first."""
