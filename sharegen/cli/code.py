"""`sharegen code-sample`: programs sampled for the problems of a dataset."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import typer

from sharegen.cli.completion import complete_program_dataset
from sharegen.cli.convert import write_converted
from sharegen.cli.options import ProgramOptions
from sharegen.cli.parameters import with_options
from sharegen.cli.run import run_recipe
from sharegen.errors import UsageError
from sharegen.results.export.kinds import Format

_SAMPLED, _DATA = "Programs", "Data"

SchemaOption = Annotated[
    str | None,
    typer.Option(
        "--schema",
        help="Columns of the dataset: apps, humaneval, mbpp or livecodebench, where they "
        "cannot be recognised.",
        metavar="SCHEMA",
        rich_help_panel=_DATA,
    ),
]


@with_options
def code_sample(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="The dataset: apps, humaneval, mbpp, livecodebench, a file or a hub id.",
            autocompletion=complete_program_dataset,
        ),
    ],
    options: ProgramOptions,
    schema: SchemaOption = None,
    difficulty: Annotated[
        Literal["introductory", "interview", "competition", "easy", "medium", "hard"] | None,
        typer.Option(
            "--difficulty",
            metavar="LEVEL",
            help="Only problems of this difficulty: introductory, interview or competition (APPS), "
            "easy, medium or hard (LiveCodeBench).",
            rich_help_panel=_SAMPLED,
        ),
    ] = None,
    exclude_starter_code: Annotated[
        bool,
        typer.Option(
            "--exclude-starter-code",
            help="Leave out problems that give code to begin with (APPS).",
            rich_help_panel=_SAMPLED,
        ),
    ] = False,
    format: Annotated[
        Format,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Write the finished journal in this format too, beside it (see convert).",
            rich_help_panel=_SAMPLED,
        ),
    ] = "sharegen",
) -> None:
    """Sample programs for the problems of a dataset into a JSONL journal.

    The same as `sharegen run code-sample --dataset DATASET`. Nothing is executed; afterwards
    `sharegen score` runs the programs against the problems' tests.

    \b
    Examples:
      sharegen code-sample humaneval --model Qwen/Qwen2.5-Coder-1.5B -n 100
      sharegen code-sample apps --difficulty introductory --model ./model -n 1000
      sharegen code-sample mine.jsonl --few-shot-file train.jsonl --model ./model
    """
    if options.dataset is not None:
        file = options.dataset
        raise UsageError(
            f"--dataset {file}: the dataset is the argument: give {file} in the place of {name}, "
            "and with --schema the columns if they are not recognised"
        )
    where: dict[str, object] = {}
    if difficulty is not None:
        where["difficulty"] = difficulty
    if exclude_starter_code:
        where["has_starter_code"] = False
    flags = {"dataset": {"where": where}} if where else {}
    options = dataclasses.replace(options, dataset=name)
    journal = run_recipe("code-sample", options, context.obj, flags, schema)
    if journal is not None and format != "sharegen":
        write_converted(journal, format)
