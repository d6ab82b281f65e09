"""The rows of the tables: what each one runs, and what it needs. The most important come first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from benchmarks.measurement import Peer

Precision = Literal["bf16", "FP8", "MXFP4", "float32"]


@dataclass(frozen=True)
class CardRow:
    """One row.

    name: of the row. kind: of its table. engine: what comes after `sharegen`, but for the workload
    of a job; jobs that follow each other with the same engine share one start. workload: of a job.
    start, seconds: what the start of its engine, and then the row itself take on an H200,
    estimated. gpus, gib: how many cards, and the memory that each must have in all; no GPU is a row
    for the CPU. card: part of the name of the card that it is for, where it is for one. peers: what
    others published for the same work.
    """

    name: str
    kind: Literal["job", "ceiling", "command", "cpu", "attention"]
    engine: tuple[str, ...]
    start: int
    seconds: int
    shape: str | None = None
    precision: Precision | None = None
    gpus: int = 1
    gib: int = 0
    card: str | None = None
    peers: tuple[Peer, ...] = ()
    workload: str | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What comes after `sharegen`."""
        return command_of([self])


def command_of(rows: Sequence[CardRow]) -> tuple[str, ...]:
    """What comes after `sharegen` to measure rows of one engine together."""
    loads = [row.workload for row in rows if row.workload is not None]
    return (*rows[0].engine, *(word for load in loads for word in ("--workload", load)))


SHAPES = "benchmarks/shapes"
"""The folder of the shapes that `sharegen bench decode` does not know by name."""

_OWN = ("llama3.2-1b", "qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "qwen3.5-9b",
        "rehearsal")  # fmt: skip
FP8 = ("--quantization", "fp8", "--kv-cache-dtype", "fp8")
"""The flags of a row whose weights and KV cache are FP8."""
MXFP4 = ("--quantization", "mxfp4", "--kv-cache-dtype", "fp8")
"""The flags of a row whose experts stay as the checkpoint has them, beside a KV cache in FP8."""
_FLAGS: dict[Precision, tuple[str, ...]] = {"FP8": FP8, "MXFP4": MXFP4}
_QUICK = ("--no-ceiling", "--no-parts")


def _jobs(
    shape: str,
    start: int,
    gib: int,
    seconds: dict[str, int],
    *more: str,
    precision: Precision = "bf16",
    gpus: int = 1,
    ending: str = "",
    peers: dict[str, Peer] | None = None,
) -> Iterator[CardRow]:
    """Rows of `sharegen bench decode` on one engine. seconds: of each workload. more: flags;
    ending: of the names. peers: of workloads.
    """
    named = f"{SHAPES}/{shape}" if shape in _OWN else shape
    engine = ("bench", "decode", "--shape", named, *more)
    if "--workers" not in more:
        engine += _QUICK if "--tensor-parallel-size" not in more else _QUICK[1:]
    engine += _FLAGS.get(precision, ())
    for workload, took in seconds.items():
        name = "-".join(filter(None, (shape, workload, precision.lower(), ending)))
        found = (peers or {}).get(workload)
        yield CardRow(
            name, "job", engine, start, took, shape, precision, gpus, gib,
            peers=() if found is None else (found,), workload=workload,
        )  # fmt: skip


_TOKASAURUS = Peer(
    name="Tokasaurus",
    version=None,
    mode="Hydragen found at run time, one H100",
    tokens_per_second=80_000,
    source="https://modal.com/docs/examples/tokasaurus_throughput",
    note='"Over 80,000", on the real model',
)
_TENSORRT = Peer(
    name="TensorRT-LLM",
    version=None,
    mode="MXFP4 checkpoint, 1,000 in, 1,000 out, one H200",
    tokens_per_second=13_858,
    source="https://nvidia.github.io/TensorRT-LLM/developer-guide/perf-overview.html",
    note="Requests at the highest rate, through its own benchmark",
)
_TENSORRT_120B = _TENSORRT.model_copy(update={"tokens_per_second": 6_868})
_RANKS = ("--tensor-parallel-size", "2")

TOKASAURUS = CardRow(
    "tokasaurus",
    "command",
    (
        "run", "self-consistency", "--limit", "128", "-n", "1024", "--few-shot", "4",
        "--temperature", "0.6", "--max-tokens", "1024", "--stop", "Question:",
        "--max-sequences", "8192",
    ),
    70, 120, "llama3.2-1b", "bf16", gib=40, card="H100", peers=(_TOKASAURUS,),
)  # fmt: skip
"""The public benchmark of Tokasaurus: a whole command, with a model folder of random weights."""

_GENERATE = ("bench", "generate", "--limit-batches", "1", "--batch", "80")

ROWS: tuple[CardRow, ...] = (
    *_jobs("llama3-8b", 35, 60,
           {"gsm8k": 25, "longdoc": 18, "few": 7, "reason": 66, "apps": 17, "noshare": 29}),
    TOKASAURUS,
    *_jobs("llama3.2-1b", 25, 30, {"gsm8k": 9}),
    *_jobs("llama3-8b", 35, 40, {"gsm8k": 19, "longdoc": 13, "few": 6, "apps": 14, "noshare": 21},
           precision="FP8"),
    *_jobs("qwen3-30b-a3b", 55, 78, {"gsm8k": 25}),
    *_jobs("gpt-oss-20b", 45, 78, {"plain": 38, "gsm8k": 25}, peers={"plain": _TENSORRT}),
    *_jobs("gpt-oss-120b", 80, 110, {"plain": 65, "gsm8k": 23}, precision="MXFP4",
           peers={"plain": _TENSORRT_120B}),
    *_jobs("gpt-oss-120b", 90, 139, {"plain": 140, "gsm8k": 25}, precision="FP8",
           peers={"plain": _TENSORRT_120B}),
    *_jobs("qwen3-8b", 35, 40, {"gsm8k": 26}),
    *_jobs("qwen3.5-9b", 50, 60, {"gsm8k": 20}),
    *_jobs("llama3-70b", 60, 130, {"gsm8k": 60}, "--max-sequences", "1536", precision="FP8"),
    *_jobs("llama2-7b", 35, 60, {"gsm8k": 21, "apps": 15}),
    *_jobs("llama2-7b", 35, 40, {"gsm8k": 20, "apps": 13}, precision="FP8"),
    *_jobs("llama3-8b", 35, 60, {"plain": 46}),
    *_jobs("llama3-8b", 35, 60, {"reason": 48, "plain": 36}, precision="FP8"),
    CardRow("attention", "attention", ("bench", "attention", "--no-sweeps"), 0, 120, gib=40),
    *_jobs("llama3-70b", 70, 139, {"gsm8k": 60}, *_RANKS, "--max-sequences", "3072",
           gpus=2, ending="ranks-2"),
    *_jobs("llama3-8b", 45, 40, {"gsm8k": 23}, "--workers", "2", "--max-sequences", "1536",
           gpus=2, ending="workers-2"),
    *_jobs("llama3-8b", 55, 30, {"gsm8k": 17}, *_RANKS, gpus=2, ending="ranks-2"),
    *_jobs("llama3-70b", 70, 78, {"gsm8k": 42}, *_RANKS, "--max-sequences", "3072",
           precision="FP8", gpus=2, ending="ranks-2"),
    CardRow("cpu-generate", "cpu", _GENERATE, 0, 150, "bundled model", "float32", gpus=0),
    CardRow("cpu-generate-one-engine", "cpu", (*_GENERATE, "--workers", "1"), 0, 180,
            "bundled model", "float32", gpus=0),
)  # fmt: skip
"""The rows of an engine follow each other, for they share its start; all else is in the order of
importance."""


def together(rows: Sequence[CardRow]) -> Iterator[list[CardRow]]:
    """Rows that follow each other and share the start of one engine."""
    for _, group in groupby(rows, key=lambda row: row.engine if row.workload else row.name):
        yield list(group)


def rehearsed(row: CardRow) -> CardRow | None:
    """The row with a tiny model, for the CPU; None where a CPU cannot run it at all."""
    small = replace(row, start=8, seconds=12, gpus=0, gib=0, card=None, peers=(),
                    shape="rehearsal", precision="float32")  # fmt: skip
    if row.kind == "attention":
        return None  # the table is measured on GPUs alone
    if row.kind == "cpu":
        few = ("--problems", "4", "--samples", "2", "--max-tokens", "8")
        return replace(row, engine=(*row.engine, *few), start=8, seconds=12)
    if row.kind == "command":
        fewer = {"128": "4", "1024": "4", "8192": "16"}
        return replace(small, engine=tuple(fewer.get(word, word) for word in row.engine))
    if row.gpus > 1 and _RANKS[0] in row.engine:
        return None
    words = list(_without(row.engine, _FLAGS.get(row.precision or "bf16", ())))
    own = f"/{row.shape}" if row.kind == "ceiling" else ""  # small, of the same architecture
    words[words.index("--shape") + 1] = f"{SHAPES}/rehearsal{own}"
    if "--max-sequences" in words:
        words[words.index("--max-sequences") + 1] = "8"
    words += ["--device", "cpu", "--dtype", "float32", "--no-compile"]
    steps = 48 if row.kind == "ceiling" else 8  # enough for the parts of a step
    return replace(small, engine=tuple(words), workload=f"64,16,4,2,{steps}")


def _without(words: tuple[str, ...], left_out: tuple[str, ...]) -> Iterator[str]:
    """words, without the last ones where they are `left_out`."""
    yield from words[: -len(left_out)] if words[-len(left_out) :] == left_out else words
