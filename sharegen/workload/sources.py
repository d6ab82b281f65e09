"""Where rows, model and files are: a preset by name, beside the recipe, here, or on the hub."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sharegen.common.names import listed, named, nearest
from sharegen.errors import UsageError
from sharegen.workload import standard_input
from sharegen.workload.dataset import READERS, read_rows
from sharegen.workload.recipe import RECIPES, Job, Recipe

DATA_SUFFIXES = tuple(suffix + packed for suffix in READERS for packed in ("", ".gz"))

_OWN = "model"  # the folder of a model that comes with a recipe's data


def choose_dataset(recipe: Recipe, dataset: str | None) -> tuple[str | None, str | None]:
    """The preset that applies, and the source that replaces the recipe's."""
    if dataset is None:
        own = recipe.job.get("dataset") or {}
        if recipe.default is None and not (own.get("source") or own.get("needles")):
            presets = f"a preset ({listed(recipe.presets)}), " if recipe.presets else ""
            raise UsageError(
                f"the recipe {recipe.name} needs --dataset: {presets}a file, a folder or a hub id"
            )
        return recipe.default, None
    if dataset == standard_input.NAME:
        return None, str(standard_input.keep_rows())
    if not dataset:
        raise UsageError("the dataset is empty: give a preset, a file, a folder or a hub id")
    by_name = _presets_by_name(recipe)
    if dataset in by_name:
        return by_name[dataset], None
    path = Path(os.path.expanduser(dataset))
    if os.path.exists(path):  # unlike `Path.exists`, of any text
        return None, str(path.resolve())
    meant = named(dataset, by_name)
    if meant is not None:
        return by_name[meant], None
    looks_like_path = dataset.endswith(DATA_SUFFIXES) or dataset.count("/") != 1
    if looks_like_path or dataset.startswith((".", "~", "/")):
        near = nearest(dataset, list(recipe.presets))
        presets = f"presets: {listed(recipe.presets)}" if recipe.presets else ""
        hint = f"did you mean {near!r}?" if near else presets
        hint = hint or "check the path"
        raise UsageError(f"--dataset {dataset}: no such file, folder or preset: {hint}")
    return None, dataset


def _presets_by_name(recipe: Recipe) -> dict[str, str]:
    """What stands for a preset -> the preset: its name, and the source of its rows."""
    sources = {
        source: name
        for name, preset in reversed(recipe.presets.items())  # of two, the first counts
        if (source := (preset.get("dataset") or {}).get("source"))
    }
    return sources | {name: name for name in recipe.presets}


def schema_preset(recipe: Recipe, name: str) -> str:
    """The preset of a schema. Raises UsageError with the nearest name."""
    known = named(name, recipe.presets)
    if known is None:
        near = nearest(name, list(recipe.presets))
        hint = f"did you mean {near!r}?" if near else f"there are {listed(recipe.presets)}"
        raise UsageError(f"unknown schema {name!r}: {hint}")
    return known


def rows_named(name: str | None) -> str | None:
    """A schema as it is recorded, whatever the case that it was given in."""
    if name is None:
        return None
    from sharegen.workload.code import schema_named

    return schema_named(name).name


def schema_of(recipe: Recipe, source: str, flags: Mapping[str, Any]) -> str | None:
    """The preset whose kind of rows a file, folder or hub id has, by its first row."""
    presets = {
        rows_named(rows): name
        for name, preset in recipe.presets.items()
        if (rows := (preset.get("dataset") or {}).get("rows"))
    }
    if not presets:
        return None
    from sharegen.workload.code import schema_of_rows

    given = flags.get("dataset") or {}
    rows = read_rows(source, given.get("config"), given.get("split", "test"), given.get("revision"))
    return presets.get(schema_of_rows(rows).name)


def model_asked(source: str) -> str | None:
    """The model that the requests of a batch file name, where one does."""
    bodies = (row.values.get("body") for row in read_rows(source, None, "train").rows)
    names = (body.get("model") for body in bodies if isinstance(body, dict))
    return next((name for name in names if isinstance(name, str) and name), None)


def model_of(recipe: Recipe, job: Job, is_flag: bool) -> str:
    """The model's folder or hub id; the name of a preset stands for that preset's model.

    A relative folder lies beside the recipe that names it, and here if a flag does.
    """
    models = {name: preset["model"] for name, preset in recipe.presets.items() if "model" in preset}
    if not job.model:
        names = f" or a preset's ({listed(models)})" if len(models) > 1 else ""
        names = names or "".join(f" or {name!r}" for name in models)
        raise UsageError(f"--model is needed: a model folder, a hub id{names}")
    given = job.model
    if given not in models and not os.path.exists(os.path.expanduser(given)):
        given = named(given, models) or given
    model = models.get(given, given)
    here, beside = Path(os.path.expanduser(model)), recipe.path.parent / model
    is_flag = is_flag and given not in models
    for folder in (*((here, beside) if is_flag else (beside, here)), RECIPES / model):
        if (folder / "config.json").is_file():
            return str(folder.resolve())
        if (folder / _OWN / "config.json").is_file():  # tinymath keeps its model beside its data
            return str((folder / _OWN).resolve())
        if folder.is_file():  # its name stays, for the hub's cache links to files without a suffix
            return str(folder.parent.resolve() / folder.name)
        if folder.exists():
            return str(folder.resolve())
    return model


def source_of(recipe: Recipe, job: Job) -> str | None:
    """Return where the data is: beside the recipe, or with the bundled recipes (it may be a
    copy).
    """
    source = job.dataset.source
    if source is None:
        return None
    found = (folder / source for folder in (recipe.path.parent, RECIPES))
    return next((str(path.resolve()) for path in found if path.exists()), source)


def file_of(recipe: Recipe, name: str | None, flag: str) -> str | None:
    """A file's absolute path, found from here or beside the recipe."""
    if name is None:
        return None
    for file in (Path(os.path.expanduser(name)), recipe.path.parent / name):
        if file.is_file():
            return str(file.resolve())
    raise UsageError(f"{flag} {name}: no such file")
