"""`sharegen convert`: a journal's samples as other tools read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sharegen.cli.parameters import parse_path
from sharegen.cli.telling import say
from sharegen.results.export.kinds import Format

if TYPE_CHECKING:
    from sharegen.job.converting import SampleChoice


def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A journal.", parser=parse_path)],
    format: Annotated[Format, typer.Option("--format", metavar="FORMAT", help="What to write.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to.",
            metavar="FILE",
            show_default="beside the journal",
            parser=parse_path,
        ),
    ] = None,
    only_right: Annotated[
        bool,
        typer.Option(
            "--only-right",
            help="Write only samples that are right, by their scores or the gold answers.",
        ),
    ] = False,
    per_problem: Annotated[
        int | None,
        typer.Option(
            "--per-problem",
            help="Write at most so many samples of each problem, the first by index.",
            min=1,
            show_default=False,
            metavar="K",
        ),
    ] = None,
) -> None:
    """Write a journal, and those of its shards, in the format of another tool.

    \b
    sharegen    the journal itself, in the dataset's order
    sft         JSONL of prompt and completion (TRL); turns, of a chat
    messages    JSONL of messages, the last one the model's (TRL)
    openai      the same for OpenAI's fine-tuning
    parquet     a table of all that the journal's lines hold
    human-eval  JSONL of task_id and completion
    bigcode     a JSON list with a list of whole programs for each problem
    monkeys     a folder with a YAML file a problem (Large Language Monkeys)

    Prompts are those that the journal holds (`run --keep-prompt`), or else what its dataset gives.
    Prints the path that was written.

    \b
    Examples:
      sharegen convert runs/code-sample-1a2b3c4d.jsonl --format human-eval
      sharegen convert runs/gsm8k.jsonl --format sft --only-right -o train.jsonl
    """
    from sharegen.job.converting import SampleChoice

    choice = SampleChoice(only_right, per_problem)
    write_converted(file, format, output, choice)


def write_converted(
    journal: Path,
    kind: Format,
    output: Path | None = None,
    choice: SampleChoice | None = None,
) -> None:
    """Convert a journal, say what came of it, and print the path.

    output: by default a file beside the journal.
    """
    from sharegen.job.converting import convert_journal
    from sharegen.results.export.formats import default_path

    output = output or default_path(journal, kind)
    problems, samples = convert_journal(journal, kind, output, choice)
    say(f"{samples:,} samples of {problems:,} problems as {kind}")
    print(output)
