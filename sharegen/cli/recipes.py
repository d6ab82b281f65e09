"""`sharegen recipes`: what can be run, and how it is written down."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sharegen.cli.command import Command
from sharegen.cli.completion import complete_recipe

RecipeArgument = Annotated[
    str,
    typer.Argument(
        help="A recipe's name, or a path to a YAML file.",
        metavar="RECIPE",
        autocompletion=complete_recipe,
    ),
]

app = typer.Typer(rich_markup_mode=None)

_MODELINE = "# yaml-language-server:"
"""What the line begins with that names the schema of a YAML file to an editor."""


@app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    """List the bundled recipes, or print one.

    \b
    Examples:
      sharegen recipes
      sharegen recipes show self-consistency > mine.yaml
      sharegen run ./mine.yaml
    """
    if context.invoked_subcommand is None:
        list_recipes()


@app.command("list", cls=Command)
def list_recipes() -> None:
    """List the bundled recipes.

    \b
    Example:
      sharegen recipes list
    """
    from sharegen.workload.recipe import load_recipe, recipe_names

    found = [load_recipe(name) for name in recipe_names()]
    if not sys.stdout.isatty():
        for recipe in found:
            print(recipe.name, recipe.description, ", ".join(recipe.presets), sep="\t")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("recipe", "what it does", "datasets"):
        table.add_column(name)
    for recipe in found:
        presets = [f"{name}*" if name == recipe.default else name for name in recipe.presets]
        table.add_row(recipe.name, recipe.description, ", ".join(presets) or "yours")
    Console(highlight=False).print(table)


@app.command(cls=Command)
def show(recipe: RecipeArgument) -> None:
    """Print a recipe's YAML, to read it or to start one of your own.

    The first line tells editors that know YAML schemas where the schema of recipes is: they then
    complete keys, explain them and mark mistakes.

    \b
    Example:
      sharegen recipes show self-consistency > mine.yaml
    """
    from sharegen.workload.recipe import SCHEMA, find_recipe

    text = find_recipe(recipe).read_text(encoding="utf-8-sig")
    if _MODELINE not in text:
        text = f"{_MODELINE} $schema={SCHEMA.as_uri()}\n{text}"
    sys.stdout.write(text)
