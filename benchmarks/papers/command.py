"""`python -m benchmarks paper`: the experiments of papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.papers.registry import listing
from sharegen.cli.bench_options import Device
from sharegen.cli.parameters import parse_path

HELP = f"""An experiment of a paper, as that has it, with today's peers beside it.

A JSON line for each measured point; on stderr the table, and what the paper's own machine gave.
Without NAME the names are listed.

\b
{listing()}

Example: python -m benchmarks paper hydragen-attention --quick --plot layer.svg
"""


def paper(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it into this .svg file.", parser=parse_path),
    ] = None,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    quick: Annotated[
        bool, typer.Option("--quick", help="Run it at a tiny shape: two minutes of two cores.")
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Timed runs of each point.  [default: the experiment's]",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run only this one of its shapes (repeatable), or a folder's config.",
        ),
    ] = None,
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="GPUs that the model is cut among.  [default: 1]"),
    ] = None,
    tables: Annotated[
        bool,
        typer.Option("--tables", help="Measure the paper's tables too, not its figures alone."),
    ] = False,
    problems: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Problems of the job.  [default: the paper's]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model folder or hub id.  [default: the bundled one]")
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plant the facts in this text.", parser=parse_path),
    ] = None,
    facts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with fact, question and answer; the first are the examples.",
            parser=parse_path,
        ),
    ] = None,
    questions: Annotated[
        list[int] | None,
        typer.Option(metavar="N", min=1, help="Questions to ask at once (repeatable)."),
    ] = None,
) -> None:
    from benchmarks.papers.run import bench_paper

    if name is None:
        typer.echo(listing())
        return
    bench_paper(
        name,
        plot,
        device=device,
        dtype=dtype,
        quick=quick,
        repeats=repeats,
        shape=tuple(shape) if shape else None,
        tensor_parallel_size=tensor_parallel_size,
        tables=tables or None,
        problems=problems,
        model=model,
        document=document,
        facts=facts,
        questions=tuple(questions) if questions else None,
    )
