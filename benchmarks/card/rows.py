"""The rows of the tables: what each one runs, and what it needs. The most important come first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.measurement import Peer

Precision = Literal["bf16", "FP8", "float32"]


@dataclass(frozen=True)
class CardRow:
    """One row.

    name: of the row. kind: of its table. command: what comes after `sharegen`. seconds: that it
    takes on an H200, estimated. gpus, gib: how many cards, and the memory that each must have in
    all; no GPU is a row for the CPU. peers: what others published for the same work.
    """

    name: str
    kind: Literal["job", "command", "cpu", "attention"]
    command: tuple[str, ...]
    seconds: int
    shape: str | None = None
    precision: Precision | None = None
    gpus: int = 1
    gib: int = 0
    peers: tuple[Peer, ...] = ()


SHAPES = "benchmarks/shapes"
"""The folder of the shapes that `sharegen bench decode` does not know by name."""

_OWN = ("llama3.2-1b", "qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "qwen3.5-9b", "rehearsal")
_FP8 = ("--quantization", "fp8", "--kv-cache-dtype", "fp8")


def _job(
    shape: str,
    workload: str,
    seconds: int,
    gib: int,
    *more: str,
    precision: Precision = "bf16",
    gpus: int = 1,
    ending: str = "",
    peers: tuple[Peer, ...] = (),
) -> CardRow:
    """A row of `sharegen bench decode`. more: flags; ending: of the name."""
    named = f"{SHAPES}/{shape}" if shape in _OWN else shape
    command = ("bench", "decode", "--shape", named, "--workload", workload, *more)
    if precision == "FP8":
        command += _FP8
    name = "-".join(filter(None, (shape, workload, precision.lower(), ending)))
    return CardRow(name, "job", command, seconds, shape, precision, gpus, gib, peers)


_ALONE = "--no-ceiling"
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
_RANKS = ("--tensor-parallel-size", "2")

TOKASAURUS = CardRow(
    "tokasaurus",
    "command",
    (
        "run", "self-consistency", "--limit", "128", "-n", "1024", "--few-shot", "4",
        "--temperature", "0.6", "--max-tokens", "1024", "--stop", "Question:",
        "--max-sequences", "4096",
    ),
    240, "llama3.2-1b", "bf16", gib=40, peers=(_TOKASAURUS,),
)  # fmt: skip
"""The public benchmark of Tokasaurus: a whole command, with a model folder of random weights."""

ROWS: tuple[CardRow, ...] = (
    _job("llama3-8b", "gsm8k", 150, 40),
    _job("llama3-8b", "longdoc", 110, 40),
    TOKASAURUS,
    _job("llama3.2-1b", "gsm8k", 80, 30),
    _job("llama3-8b", "gsm8k", 130, 40, precision="FP8"),
    _job("qwen3-30b-a3b", "gsm8k", 170, 78),
    _job("llama3-8b", "few", 70, 40),
    _job("llama3-8b", "reason", 270, 60, _ALONE),
    _job("llama3-8b", "longdoc", 110, 40, precision="FP8"),
    _job("gpt-oss-20b", "plain", 170, 78, _ALONE, peers=(_TENSORRT,)),
    _job("gpt-oss-20b", "gsm8k", 130, 60),
    _job("qwen3-8b", "gsm8k", 150, 40),
    _job("qwen3.5-9b", "gsm8k", 190, 60),
    _job("llama3-70b", "gsm8k", 400, 130, "--max-sequences", "1536", _ALONE, precision="FP8"),
    _job("llama3-8b", "noshare", 140, 60),
    _job("llama3-8b", "apps", 90, 40),
    _job("llama3-8b", "plain", 170, 78, _ALONE),
    _job("llama3-8b", "noshare", 110, 40, precision="FP8"),
    _job("llama3-8b", "apps", 90, 40, precision="FP8"),
    _job("llama3-8b", "few", 70, 40, precision="FP8"),
    _job("llama3-8b", "reason", 230, 40, _ALONE, precision="FP8"),
    _job("llama3-8b", "plain", 150, 60, _ALONE, precision="FP8"),
    _job("llama2-7b", "gsm8k", 150, 60),
    _job("llama2-7b", "apps", 120, 60),
    _job("llama2-7b", "gsm8k", 120, 40, precision="FP8"),
    _job("llama2-7b", "apps", 100, 40, precision="FP8"),
    CardRow("attention", "attention", ("bench", "attention", "--no-sweeps"), 120, gib=40),
    _job("llama3-8b", "gsm8k", 150, 40, "--workers", "2", "--max-sequences", "1536",
         gpus=2, ending="workers-2"),
    _job("llama3-8b", "gsm8k", 150, 30, *_RANKS, gpus=2, ending="ranks-2"),
    _job("llama3-70b", "gsm8k", 280, 139, *_RANKS, "--max-sequences", "3072",
         gpus=2, ending="ranks-2"),
    _job("llama3-70b", "gsm8k", 220, 90, *_RANKS, "--max-sequences", "3072",
         precision="FP8", gpus=2, ending="ranks-2"),
    CardRow("cpu-generate", "cpu", ("bench", "generate", "--limit-batches", "1", "--batch", "80"),
            150, "bundled model", "float32", gpus=0),
    CardRow("cpu-generate-one-engine", "cpu",
            ("bench", "generate", "--limit-batches", "1", "--batch", "80", "--workers", "1"),
            180, "bundled model", "float32", gpus=0),
)  # fmt: skip


def rehearsed(row: CardRow) -> CardRow | None:
    """The row with a tiny model, for the CPU; None where a CPU cannot run it at all."""
    seconds, tiny = 20, f"{SHAPES}/rehearsal"
    if row.kind == "attention":
        return None  # the table is measured on GPUs alone
    if row.kind == "cpu":
        small = ("--problems", "4", "--samples", "2", "--max-tokens", "8")
        return replace(row, command=(*row.command, *small), seconds=seconds)
    if row.kind == "command":
        command = tuple({"128": "4", "1024": "4", "4096": "16"}.get(x, x) for x in row.command)
        return replace(row, command=command, seconds=seconds, shape="rehearsal",
                       precision="float32", gpus=0, gib=0, peers=())  # fmt: skip
    if row.gpus > 1 and _RANKS[0] in row.command:
        return None
    words = list(_without(row.command, _FP8))
    words[words.index("--shape") + 1] = tiny
    words[words.index("--workload") + 1] = "64,16,4,2,8"
    if "--max-sequences" in words:
        words[words.index("--max-sequences") + 1] = "8"
    words += ["--device", "cpu", "--dtype", "float32", "--no-compile"]
    return replace(row, command=tuple(words), seconds=seconds, shape="rehearsal",
                   precision="float32", gpus=0, gib=0, peers=())  # fmt: skip


def _without(words: tuple[str, ...], left_out: tuple[str, ...]) -> Iterator[str]:
    """words, without the last ones where they are `left_out`."""
    yield from words[: -len(left_out)] if words[-len(left_out) :] == left_out else words
