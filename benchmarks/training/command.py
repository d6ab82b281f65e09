"""`python -m benchmarks training`, as the command line takes it."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.options import Commit
from sharegen.cli.bench_options import Device
from sharegen.cli.parameters import parse_path
from sharegen.errors import UsageError


def training(
    model: Annotated[
        str, typer.Argument(help="A model's folder, or a shape, whose weights are random.")
    ],
    prompts: Annotated[int, typer.Option(min=1, help="Prompts of a step.")] = 64,
    length: Annotated[int, typer.Option(min=1, help="Tokens of each, of random weights.")] = 300,
    samples: Annotated[int, typer.Option("--samples", "-n", min=2, help="Samples of each.")] = 8,
    output: Annotated[int, typer.Option(min=1, help="The most tokens of a sample.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the trainer.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of a forward of the trainer.")] = 8,
    peer: Annotated[
        int, typer.Option(min=0, help="Tokens a sample that generate_batch draws; 0: none.")
    ] = 64,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    autocast: Annotated[
        bool,
        typer.Option("--autocast", help="Train a float32 module under autocast to the dtype."),
    ] = False,
    device: Device = "auto",
    fp32_head: Annotated[
        bool, typer.Option("--fp32-head", help="TRL's cast_lm_head_to_fp32.")
    ] = False,
    compare: Annotated[
        bool, typer.Option(help="Compare the log-probabilities of the first step.")
    ] = True,
    compile: Annotated[bool, typer.Option(help="Compile the rollout's layers on a GPU.")] = True,
    kv_cache_memory: Annotated[
        int | None, typer.Option(min=1, metavar="BYTES", help="The engine's KV cache.")
    ] = None,
    second_engine: Annotated[
        bool,
        typer.Option(
            "--second-engine",
            help="Draw the last rollout again by an engine with a copy of the module, for its "
            "memory; needs --kv-cache-memory.",
        ),
    ] = False,
    results: Annotated[
        Path, typer.Option(help="Folder of the file, or a file of lines.", parser=parse_path)
    ] = Path("benchmarks/results"),
    commit: Commit = None,
    busy: Annotated[
        bool, typer.Option("--busy", help="Say in the file that others use the machine.")
    ] = False,
) -> None:
    """Measure GRPO by TRL: rollouts, whole steps, memory, and how far log-probabilities are apart.

    Then transformers' generate_batch draws a part of the same. Needs sharegen[trl].

    Example: python -m benchmarks training benchmarks/shapes/qwen3-1.7b

    Example: python -m benchmarks training recipes/tinymath/model --steps 1 --peer 0 --device cpu
    """
    if find_spec("trl") is None:
        raise UsageError("trl is not installed: pip install -c constraints.txt '.[trl]'")
    if dtype not in ("bfloat16", "float16", "float32"):
        raise UsageError(f"--dtype {dtype}: it must be bfloat16, float16 or float32")
    if autocast and dtype == "float32":
        raise UsageError("--autocast computes in 16 bits: say --dtype bfloat16 or float16")
    if dtype == "float16" and not autocast:
        raise UsageError("--dtype float16 trains a float32 module alone: say --autocast")
    if prompts * samples % batch:
        raise UsageError(
            f"--batch {batch}: it must divide the {prompts * samples} samples of a step"
        )
    if second_engine and kv_cache_memory is None:
        raise UsageError(
            "--second-engine compares memory with KV caches of one size: say --kv-cache-memory"
        )
    from benchmarks.result_lines import add_result
    from benchmarks.training.result import measurement
    from benchmarks.training.steps import TrainingSettings, measure

    options: dict[str, Any] = {"compile": compile}
    if kv_cache_memory is not None:
        options["kv_cache_memory"] = kv_cache_memory
    asked = TrainingSettings(
        model, prompts, length, samples, output, steps, batch, peer, dtype, device, fp32_head,
        compare, autocast, second_engine, options,
    )  # fmt: skip
    typed = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    found = measurement(asked, measure(asked), typed, commit, busy)
    typer.echo(found.model_dump_json(exclude_defaults=True))
    typer.echo(f"written: {add_result(found, results)}", err=True)
