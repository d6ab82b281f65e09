"""`--recipe` and `--set` of commands that read a journal's answers: how they read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sharegen.cli.flags import assigned

if TYPE_CHECKING:
    from sharegen.job.answer_recipe import AnswerRecipe

_PANEL = "Answers"

RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        help="Read the answers by this recipe (a name or a file).",
        metavar="RECIPE",
        show_default="the journal's, as its last run had it",
        rich_help_panel=_PANEL,
    ),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Read them by this key of the recipe, as answer.extract=boxed (repeatable).",
        metavar="KEY=VALUE",
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]


def answers_by(recipe: str | None, assignments: Sequence[str] | None) -> AnswerRecipe:
    """What the two options say. Raises UsageError for a --set that is no assignment."""
    from sharegen.common.mappings import merge
    from sharegen.job.answer_recipe import AnswerRecipe

    flags: dict[str, Any] = {}
    for assignment in assignments or ():
        flags = merge(flags, assigned(assignment))
    return AnswerRecipe(recipe, flags)
