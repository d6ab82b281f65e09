"""The help of commands that run a recipe: the defaults are those of the recipe that is typed."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from sharegen.cli.command import Command
from sharegen.cli.key_options import DATASET, KEYS, RUN_KEYS
from sharegen.errors import SharegenError

_TYPED = "sharegen.typed"  # the arguments, among what a context of the parser remembers
_KEYS = {each.flag.attribute: each for each in (*KEYS, *RUN_KEYS)}


class JobCommand(Command):
    """A command whose argument is a recipe. `sharegen run RECIPE --help` shows what RECIPE sets."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[_TYPED] = list(args)
        return super().parse_args(ctx, args)

    def shown_params(self, ctx: Any) -> list[Any]:
        job = self._job(ctx)
        return [_with_default(param, job) for param in super().shown_params(ctx)]

    def recipe_typed(self, typed: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """The recipe and the dataset among the words that were typed, by parameter."""
        return typed.get("recipe"), typed.get("dataset")

    def _job(self, ctx: Any) -> Mapping[str, Any]:
        """What the recipe says with the dataset's preset; nothing where none is typed, or no good.

        The command itself says what is wrong with a recipe, and its help is there all the same.
        """
        typed: dict[str, Any] = {}
        if _TYPED in ctx.meta:
            typed, _, _ = self.make_parser(ctx).parse_args(args=list(ctx.meta[_TYPED]))
        name, dataset = self.recipe_typed(typed)
        if not isinstance(name, str):
            return {}
        from sharegen.workload.recipe import load_recipe

        try:
            recipe = load_recipe(name)
        except SharegenError:
            return {}
        preset = recipe.default if dataset is None else dataset
        job = recipe.merged(preset if preset in recipe.presets else None)
        shown = preset if dataset is None else None
        section, _, key = DATASET.rpartition(".")
        return {**job, section: {**(job.get(section) or {}), **({key: shown} if shown else {})}}


class ProgramCommand(JobCommand):
    """`code-sample`, whose argument is a dataset of the recipe of its name."""

    def recipe_typed(self, typed: Mapping[str, Any]) -> tuple[str | None, str | None]:
        return "code-sample", typed.get("name")


def _with_default(param: Any, job: Mapping[str, Any]) -> Any:
    """The parameter, with what a job has in place of its flag as the default that is shown."""
    key = _KEYS.get(param.name)
    if key is None:
        return param
    shown = copy.copy(param)
    shown.show_default = key.default_in(job) or False
    return shown
