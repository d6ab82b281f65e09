"""What a shell offers after Tab: recipes, their datasets, the values of flags that have a few."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

Offer = list[tuple[str, str]]
"""Words, each with what it is."""


def complete_recipe(incomplete: str) -> Offer:
    """Bundled recipes, and YAML files of this folder."""
    from sharegen.workload.recipe import load_recipe, recipe_names

    names = [name for name in recipe_names() if name.startswith(incomplete)]
    files = [offer for offer in _paths(incomplete) if offer[0].endswith((".yaml", ".yml", "/"))]
    return [(name, load_recipe(name).description) for name in names] + files


def complete_dataset(context: typer.Context, incomplete: str) -> Offer:
    """The presets of the recipe that is typed already, else of all recipes, and files here."""
    from sharegen.errors import UsageError
    from sharegen.workload.recipe import load_recipe, recipe_names

    typed = context.params.get("recipe")
    offers: Offer = []
    for name in [typed] if typed else recipe_names():
        try:
            presets = load_recipe(name).presets
        except UsageError:
            continue  # the command reports it when it runs
        offers += [(preset, f"a dataset of {name}") for preset in presets]
    return [offer for offer in offers if offer[0].startswith(incomplete)] + _paths(incomplete)


def complete_program_dataset(incomplete: str) -> Offer:
    """The datasets of programs, and files here."""
    from sharegen.workload.recipe import load_recipe

    names = [name for name in load_recipe("code-sample").presets if name.startswith(incomplete)]
    return [(name, "a dataset of programs") for name in names] + _paths(incomplete)


def complete_from(*words: str) -> Callable[[str], list[str]]:
    """A completion that offers the words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return complete


def _paths(incomplete: str) -> Offer:
    """Files and folders that begin so, as a shell offers where nothing else is: not hidden ones."""
    folder, _, name = incomplete.rpartition("/")
    try:
        found = sorted(Path(folder or ("/" if incomplete.startswith("/") else ".")).iterdir())
    except OSError:
        return []
    prefix = incomplete[: len(incomplete) - len(name)]
    shown = [path for path in found if path.name.startswith(name) and (name or path.name[0] != ".")]
    return [
        (f"{prefix}{path.name}/", "a folder") if path.is_dir() else (prefix + path.name, "a file")
        for path in shown
    ]
