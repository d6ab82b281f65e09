"""`sharegen bench`: measuring sharegen on this machine. Each command ends in one JSON line."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(help="Measure sharegen on this machine.", no_args_is_help=True)


@app.command("decode")
def decode(
    shape: Annotated[
        str, typer.Option(help="llama3-8b, llama2-7b, codellama-13b, or a folder with a config.")
    ] = "llama3-8b",
    workload: Annotated[
        str,
        typer.Option(help="gsm8k, apps, longdoc, noshare, or PREFIX,PROBLEM,PROBLEMS,SAMPLES,NEW."),
    ] = "gsm8k",
    levels: Annotated[
        int, typer.Option(min=0, max=2, help="Share nothing, the prefix, or the problems too.")
    ] = 2,
    max_sequences: Annotated[int, typer.Option(min=1, help="Sequences decoded together.")] = 1024,
    temperature: Annotated[float, typer.Option(min=0.0)] = 0.7,
    dtype: Annotated[str, typer.Option(help="bfloat16, float16 or float32.")] = "bfloat16",
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    compile_model: Annotated[bool, typer.Option("--compile/--no-compile")] = True,
    ceiling: Annotated[
        bool, typer.Option(help="Also run the job with attention replaced by a copy.")
    ] = True,
) -> None:
    """Whole jobs on a model of a known shape with random weights.

    Example: sharegen bench decode --shape llama3-8b --workload gsm8k
    """
    from sharegen.bench.decode import decode as run
    from sharegen.errors import UsageError

    if dtype not in ("bfloat16", "float16", "float32"):
        raise UsageError(f"--dtype {dtype}: it must be bfloat16, float16 or float32")
    result = run(
        shape,
        workload,
        levels=levels,
        max_sequences=max_sequences,
        temperature=temperature,
        dtype=dtype,
        device=device,
        compile_model=compile_model,
        ceiling=ceiling,
    )
    typer.echo(json.dumps(result))


@app.command("score")
def score(
    programs: Annotated[int, typer.Option(min=1, help="Trivial programs to run.")] = 400,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default cores.")] = None,
) -> None:
    """How many programs a second the sandbox runs, isolation included.

    Example: sharegen bench score
    """
    from sharegen.bench.score import bench_score

    *table, last = bench_score(programs, workers)
    for line in table:
        typer.echo(line, err=True)
    typer.echo(last)
