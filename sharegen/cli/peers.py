"""`sharegen bench generate` and `llama.cpp`: a job through sharegen and through another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sharegen.cli.bench_options import Device
from sharegen.cli.parameters import parse_path


def generate(
    model: Annotated[str | None, typer.Option(help="Model folder or hub id.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A preset of self-consistency, a file or a hub id.")
    ] = None,
    few_shot_file: Annotated[
        str | None, typer.Option(help="Take the examples before each problem from here.")
    ] = None,
    problems: Annotated[int, typer.Option(min=1, help="Problems to ask.")] = 64,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Samples of each.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every sample.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.01, help="Temperature of all draws.")] = 1.0,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Sequences in one generate() call (repeatable). 20, 80 and 320."),
    ] = None,
    limit_batches: Annotated[
        int | None, typer.Option(min=1, help="Time only so many calls of each size, not all.")
    ] = None,
    device: Device = "auto",
    dtype: Annotated[
        str, typer.Option(help="What models compute in: auto, float32, bfloat16 or float16.")
    ] = "auto",
    max_sequences: Annotated[
        int | None, typer.Option(min=1, help="Sequences that an engine decodes together.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Engines of sharegen.  [as many as pay on a CPU, 1 on a GPU]"),
    ] = None,
) -> None:
    """Time a job by sharegen and by transformers' generate(), at its best batch size.

    Example: sharegen bench generate --problems 16 --limit-batches 2
    """
    from sharegen.bench.generate import BATCHES, bench_generate

    result = bench_generate(
        model,
        dataset,
        few_shot_file,
        problems=problems,
        samples=samples,
        max_tokens=max_tokens,
        temperature=temperature,
        batches=batch or BATCHES,
        limit_batches=limit_batches,
        device=device,
        dtype=dtype,
        max_sequences=max_sequences,
        workers=workers,
    )
    typer.echo(json.dumps(result))


def llama_cpp(
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A GGUF file, or the folder of a Llama checkpoint, which is written as one.  "
            "[the bundled model]",
            parser=parse_path,
        ),
    ] = None,
    prompt: Annotated[int, typer.Option(min=16, help="Tokens that all sequences share.")] = 752,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of every sequence.")] = 128,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, max=256, help="Sequences together (repeatable). 20, 80 and 256."),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="The data type of sharegen, and of a file that is written: float32 or bfloat16."
        ),
    ] = "float32",
) -> None:
    """Time one shared prompt by llama.cpp's llama-batched-bench and by sharegen, on the CPU.

    Example: sharegen bench llama.cpp

    Example: sharegen bench llama.cpp --model llama.gguf --batch 20
    """
    from sharegen.bench.llama_cpp import BATCHES, BUNDLED, bench_llama_cpp
    from sharegen.errors import UsageError

    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype {dtype}: it must be float32 or bfloat16")
    result = bench_llama_cpp(
        model or BUNDLED,
        prompt_tokens=prompt,
        max_tokens=max_tokens,
        batches=batch or BATCHES,
        dtype=dtype,
    )
    typer.echo(json.dumps(result))
