"""`sharegen bench`: measuring sharegen on this machine. Each command ends in one JSON line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sharegen.cli.bench_options import (
    CompileModel,
    Device,
    Dtype,
    KVCacheDtype,
    Quantization,
    Rows,
    Shape,
)
from sharegen.cli.command import Command
from sharegen.cli.peers import generate, llama_cpp

app = typer.Typer(help="Measure sharegen on this machine.", no_args_is_help=True)


@app.command("decode", cls=Command)
def decode(
    shape: Shape = "llama3-8b",
    workload: Annotated[
        list[str] | None,
        typer.Option(
            help="The workload: gsm8k, apps, longdoc, noshare, few, reason, plain, or "
            "PREFIX,PROBLEM,PROBLEMS,SAMPLES,OUTPUT (repeatable).  [default: gsm8k]"
        ),
    ] = None,
    levels: Annotated[
        int, typer.Option(min=0, max=2, help="Share nothing, the prefix, or the problems too.")
    ] = 2,
    read_by_each: Annotated[
        bool,
        typer.Option(
            "--read-by-each",
            help="Store shared tokens once, but have each row read them, as PagedAttention does.",
        ),
    ] = False,
    max_sequences: Rows = 1024,
    temperature: Annotated[float, typer.Option(min=0.0, help="Temperature; 0 is greedy.")] = 0.7,
    dtype: Dtype = "bfloat16",
    quantization: Quantization = None,
    kv_cache_dtype: KVCacheDtype = "auto",
    device: Device = "cuda",
    compile_model: CompileModel = True,
    ceiling: Annotated[
        bool | None,
        typer.Option(
            help="Also run each job with attention replaced by a copy.  [default: ceiling, of one "
            "workload on one GPU]"
        ),
    ] = None,
    parts: Annotated[
        bool | None,
        typer.Option(help="Also time the parts of a full step.  [default: parts]"),
    ] = None,
    largest: Annotated[
        bool, typer.Option(help="Also run it with as many sequences as memory holds, up to 4,096.")
    ] = False,
    workers: Annotated[
        int, typer.Option(min=1, help="Also run it on so many engines, and compare with one.")
    ] = 1,
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="GPUs that the model is cut among.")
    ] = 1,
) -> None:
    """Time whole jobs on a model of a known shape with random weights.

    Several workloads run one after the other on one engine, and each has its line of JSON. A job is
    run up to three times, while its runs take less than 12 seconds together; the median counts.

    Example: sharegen bench decode --shape llama3-8b --workload gsm8k
    """
    from sharegen.bench.decode import decode as run
    from sharegen.errors import UsageError

    loads = workload or ["gsm8k"]
    if len(loads) > 1 and (workers > 1 or largest):
        raise UsageError("several workloads: leave out --workers and --largest")
    if tensor_parallel_size > 1 and (workers > 1 or ceiling or largest):
        raise UsageError("--tensor-parallel-size: leave out --workers, --ceiling and --largest")
    if workers > 1:
        from sharegen.bench.workers import decode_on_workers

        alone = levels != 2 or read_by_each or ceiling is not None or largest
        if alone or parts is not None or kv_cache_dtype != "auto":
            raise UsageError(
                "--workers: leave out --levels, --read-by-each, --ceiling, --parts, --largest and "
                "--kv-cache-dtype"
            )
        compared = decode_on_workers(
            shape,
            loads[0],
            workers,
            max_sequences=max_sequences,
            temperature=temperature,
            dtype=dtype,
            quantization=quantization,
            device=device,
            compile_model=compile_model,
        )
        typer.echo(json.dumps(compared))
        return
    for result in run(
        shape,
        loads,
        levels=levels,
        max_sequences=max_sequences,
        temperature=temperature,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        device=device,
        compile_model=compile_model,
        ceiling=len(loads) == 1 if ceiling is None else ceiling,
        parts=parts is not False,
        largest=largest,
        tensor_parallel_size=tensor_parallel_size,
        read_by_each=read_by_each,
    ):
        typer.echo(json.dumps(result))


@app.command("attention", cls=Command)
def attention(
    sweeps: Annotated[
        bool | None,
        typer.Option(
            "--sweeps/--no-sweeps",
            help="Also vary batch, prefix, problem and suffix length.  [default: sweeps]",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the sweeps into this file, say attention.svg.")
    ] = None,
    fit: Annotated[
        bool,
        typer.Option(help="Only fit the cost model to this GPU, and keep it for every run on it."),
    ] = False,
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            metavar="CASE",
            help="Measure only this case, on a CPU where there is no GPU (repeatable): "
            "Q/KV,PREFIX,PROBLEM,PROBLEMSxSAMPLES,SUFFIX.",
        ),
    ] = None,
) -> None:
    """Time one layer of decode attention, and torch's and FlashInfer's where installed.

    Example: sharegen bench attention --plot attention.svg

    Example: sharegen bench attention --case 32/8,1024,112,26x40,128
    """
    from sharegen.bench.attention import bench_attention, bench_cases, fit_and_save
    from sharegen.errors import UsageError

    if case and (fit or plot is not None or sweeps is not None):
        raise UsageError("--case: leave out --fit, --plot, --sweeps and --no-sweeps")
    if case:
        typer.echo(json.dumps(bench_cases(case)))
        return
    if fit and (plot is not None or sweeps is not None):
        raise UsageError("--fit draws and sweeps nothing: leave out --plot, --sweeps, --no-sweeps")
    typer.echo(json.dumps(fit_and_save() if fit else bench_attention(plot, sweeps is not False)))


app.command("generate", cls=Command)(generate)
app.command("llama.cpp", cls=Command)(llama_cpp)


@app.command("score", cls=Command)
def score(
    programs: Annotated[int, typer.Option(min=1, help="Trivial programs of each kind.")] = 400,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Programs at a time [one a core].", show_default=False),
    ] = None,
) -> None:
    """Time how many programs a second are scored on each core, isolation included.

    Measures every sandbox that works here, with scripts, calls of a function and assertions.

    Example: sharegen bench score
    """
    from sharegen.bench.score import bench_score

    *table, last = bench_score(programs, workers)
    for line in table:
        typer.echo(line, err=True)
    typer.echo(last)
