"""`sharegen vote` and `sharegen show`: what a journal says."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sharegen.cli.answer_options import RecipeOption, SetOption, answers_by
from sharegen.cli.parameters import parse_path


def vote(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Journals (JSONL) that `sharegen run` wrote.",
            parser=parse_path,
        ),
    ],
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="Vote over the first K samples.", metavar="K")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the votes as JSONL; - for standard output.",
            parser=parse_path,
        ),
    ] = None,
    pooled: Annotated[
        bool, typer.Option("--pool", help="Take journals that differ in the seed alone together.")
    ] = False,
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="ID",
            help="Show of one problem what was read in each sample, where and by which rule.",
        ),
    ] = None,
    recipe: RecipeOption = None,
    assignments: SetOption = None,
) -> None:
    """Take the majority vote of every problem.

    Answers are brought to one spelling first (18, 18.00, $18), samples without an answer don't
    vote, and a tie goes to the answer that appears first by sample index. Answers are read from
    the completions anew, by the recipe as its last run had it, or as --recipe and --set say. On a
    terminal the votes are a table, otherwise tab-separated lines. Files of one job vote together,
    others apart; a journal brings those of its shards along. Where --stop-when stopped a job, the
    samples vote that decided it.

    \b
    Examples:
      sharegen vote runs/gsm8k.jsonl
      sharegen vote runs/gsm8k.jsonl --at 5 --output votes.jsonl
      sharegen vote runs/gsm8k.jsonl --set answer.extract=boxed
      sharegen vote runs/gsm8k.jsonl --explain 17
      sharegen vote runs/seed0.jsonl runs/seed1.jsonl --pool -o - | jq .answer
    """
    from sharegen.cli.views.votes import show_votes

    by = answers_by(recipe, assignments)
    show_votes(files, by, at=at, output=output, pooled=pooled, explain=explain)


def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A journal that `sharegen run` wrote.", parser=parse_path
        ),
    ],
    problem: Annotated[
        str, typer.Option("--problem", "-p", metavar="ID", help="The problem's id.")
    ],
    whole_prompt: Annotated[
        bool,
        typer.Option("--prompt", help="Show all of the prompt, examples and document included."),
    ] = False,
    recipe: RecipeOption = None,
    assignments: SetOption = None,
) -> None:
    """Show one problem: prompt, samples, answers, vote and gold answer.

    What a prompt has before the problem's own part is folded away unless --prompt is given.

    \b
    Example:
      sharegen show runs/gsm8k.jsonl --problem 17
    """
    from sharegen.cli.views.problem import show_problem

    show_problem(file, problem, answers_by(recipe, assignments), whole_prompt)
