"""A journal's answers read by another recipe than the one that its run.json names.

Only `answer`, and the names of the dataset's columns, can be others: all else decided the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sharegen.common.log import log
from sharegen.common.mappings import merge
from sharegen.errors import SharegenError, UsageError
from sharegen.results.journal.pool import Pool
from sharegen.results.journal.rereading import Rereading
from sharegen.results.journal.run_file import as_json, shown

if TYPE_CHECKING:
    from sharegen.workload.configuration import Configuration


@dataclass(frozen=True)
class AnswerRecipe:
    """What answers are to be read by: a recipe, and keys that were set on top of it."""

    recipe: str | None = None
    flags: Mapping[str, Any] | None = None

    def of(self, found: Pool) -> Pool:
        """The journals of one job, with their answers read so.

        Gold answers are read from the dataset where the recipe finds them elsewhere now. Raises
        UsageError for keys that cannot be read anew, and the dataset's errors.
        """
        if not (self.recipe or self.flags or found.golds_differ):
            return found
        # Here, for with it comes all that reads a job, and most journals are read as they are.
        from sharegen.job.gold_reading import gold_answers
        from sharegen.workload.configuration import Configuration

        run = found.run
        if run is None:
            raise UsageError(
                f"{found.name}: has no {shown(found.files[0])} that names its recipe, so its "
                "lines are all that is known: leave out --recipe and --set"
            )
        recorded = Configuration.from_settings(run.settings)
        asked = self._configuration(recorded)
        golds: dict[str, str | None] = {}
        if _gold(asked) != _gold(recorded) or found.golds_differ:
            try:
                golds = gold_answers(asked)
            except SharegenError as error:
                if _places(asked) != _places(recorded):
                    said = f"{found.name}: gold answers are read anew: {error}"
                    raise type(error)(said) from None
                log(f"{found.name}: gold answers are as its lines have them: {error}")
        if asked.answer == recorded.answer and not golds:
            return found
        return found.read_by(Rereading(as_json(asked.model_dump())["answer"], golds))

    def _configuration(self, recorded: Configuration) -> Configuration:
        from sharegen.workload.configuration import Configuration
        from sharegen.workload.recipe import load_recipe
        from sharegen.workload.validation import validate

        values = recorded.model_dump()
        if self.recipe is not None:
            recipe = load_recipe(self.recipe)
            preset = recorded.preset if recorded.preset in recipe.presets else recipe.default
            merged = recipe.merged(preset)
            values["answer"] = merged.get("answer")
            fields = (merged.get("dataset") or {}).get("fields") or {}
            values["dataset"] = {**values["dataset"], "fields": fields}
        for key, value in (self.flags or {}).items():
            inner = value.keys() if isinstance(value, Mapping) else {""}
            if key != "answer" and not (key == "dataset" and inner == {"fields"}):
                raise UsageError(
                    f"--set {'.'.join([key, *sorted(inner)][:2]).rstrip('.')}: only answer.* and "
                    "dataset.fields.* can be read anew: the rest decided the samples"
                )
        values = merge(values, self.flags or {})
        return validate(Configuration, values, self.recipe or "--set")


def _gold(configuration: Configuration) -> Any:
    """What decides the gold answers: where they stand, and what reads them."""
    return _places(configuration), configuration.answer and configuration.answer.extract


def _places(configuration: Configuration) -> Any:
    """Where gold answers stand in the dataset."""
    return configuration.answer and configuration.answer.gold, configuration.dataset.fields
