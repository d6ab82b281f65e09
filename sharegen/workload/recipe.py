"""What a job consists of, and the YAML files that name such jobs.

A recipe is a job with open keys: its presets set them (a dataset with its model), then the
command's flags do (see configuration.py). Every layer is a plain mapping that is merged into the
one below and validated as a whole, so that a preset or a flag can set whatever a recipe can. No
code runs when a recipe is loaded, and an untrusted one costs no more time and memory than a bundled
one.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml

from sharegen.common.mappings import merge
from sharegen.common.names import SHOWN, named, nearest
from sharegen.common.parameters.data import ModelParameters
from sharegen.common.parameters.parameter import Parameter
from sharegen.errors import UsageError
from sharegen.workload import plain_yaml
from sharegen.workload.sampling_section import Sampling
from sharegen.workload.sections import Answer, Chat, Dataset, FewShot, Keep, PromptOrText
from sharegen.workload.validation import Strict, validate
from sharegen.workload.values import Place, Revision, Template

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
"""The folder of the bundled recipes."""

SCHEMA = RECIPES / "recipe.schema.json"
"""The JSON schema of recipes, for editors; docs/generate.py writes it."""

_ROWS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt")  # what people take for a recipe
_MAX_PRESETS = 100
_MAX_CHECKING = 10.0  # seconds, of all presets: none of ours takes a tenth of one


class Job(Strict, ModelParameters):  # type: ignore[misc]
    """Everything that decides what is asked and how it is answered, except the machine."""

    model: Place | None = None
    adapter: Place | None = None
    revision: Revision | None = None
    dataset: Annotated[
        Dataset,
        Parameter(
            "Where the rows come from and what they mean.",
            examples=({"source": "rows.jsonl", "fields": {"question": "problem"}},),
        ),
    ] = Dataset()
    prompt: Annotated[
        PromptOrText,
        Parameter("The template of a prompt.", examples=("Q: {{ question }}\nA:",)),
    ]
    example: Annotated[
        Template | None,
        Parameter(
            "The template of one few-shot example.",
            examples=("Q: {{ question }}\nA: {{ answer }}\n\n",),
        ),
    ] = None
    few_shot: Annotated[
        FewShot,
        Parameter(
            "Which examples stand before every problem.", examples=({"k": 8, "split": "train"},)
        ),
    ] = FewShot()
    chat: Annotated[
        Chat,
        Parameter(
            "The same prompts as turns of a chat.",
            examples=({"user": "{{ question }}", "assistant": "{{ answer }}"},),
        ),
    ] = Chat()
    sampling: Annotated[
        Sampling,
        Parameter(
            "How to draw and where to stop.",
            examples=({"samples": 20, "temperature": 0.7, "stop": ["\n\n"]},),
        ),
    ] = Sampling()
    answer: Annotated[
        Answer | None,
        Parameter(
            "How to find the answer in a completion.",
            examples=({"extract": "number", "gold": {"field": "answer"}},),
        ),
    ] = None
    keep: Annotated[
        Keep,
        Parameter("What the journal's lines have of their row.", examples=({"fields": ["level"]},)),
    ] = Keep()
    vote: Annotated[
        bool,
        Parameter(
            "Whether a run's summary also says what the majority of each problem's samples gets "
            "right.",
            examples=(False,),
        ),
    ] = True


@dataclass(frozen=True)
class Recipe:
    """A named job with its presets, as read from `path`; all values are validated."""

    name: str
    path: Path
    description: str
    default: str | None
    job: dict[str, Any]
    presets: dict[str, dict[str, Any]]

    @property
    def is_bundled(self) -> bool:
        """Whether it is one of ours."""
        return self.path.parent == RECIPES

    def merged(self, preset: str | None) -> dict[str, Any]:
        """The job's mapping with one preset on top (None: the bare recipe)."""
        return merge(self.job, self.presets[preset]) if preset else self.job


def recipe_names() -> list[str]:
    """The bundled recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(name: str) -> Path:
    """The file of a recipe given by name or by path. Raises UsageError with the nearest names."""
    known = named(name, recipe_names())
    if known is not None:
        return RECIPES / f"{known}.yaml"
    path = Path(os.path.expanduser(name))
    if name.lower().removesuffix(".gz").endswith(_ROWS):
        raise UsageError(f"{name} is a file of rows: write a recipe, and --dataset {name}")
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if path.is_file():
            return path.resolve()
        raise UsageError(f"{name}: no such recipe file (rows go by --dataset)")
    raise UsageError(
        f"unknown recipe {name!r}: {_meant(name)} (your own recipe is a path to a YAML file)"
    )


def _meant(name: str) -> str:
    """What to write in place of a name that no recipe has: it may be a dataset's, or misspelt."""
    recipes = recipe_names()
    beginning = [known for known in recipes if name and known.startswith(name.casefold())]
    near = nearest(name, recipes) or (beginning[0] if len(beginning) == 1 else None)
    presets = {preset: recipe for recipe in recipes for preset in load_recipe(recipe).presets}
    preset = named(name, presets) or (None if near else nearest(name, list(presets)))
    if preset is not None:
        command = f"{presets[preset]} --dataset {preset}"
        if presets[preset] == "code-sample":  # a command of its own
            command = f"sharegen code-sample {preset}"
        return f"{preset} is a dataset: write {command}"
    return f"did you mean {near!r}?" if near else f"there are {', '.join(recipes)}"


def load_recipe(name: str) -> Recipe:
    """Reads and validates a recipe by name or path.

    Raises UsageError naming the file and the key for everything that is wrong in it.
    """
    path = find_recipe(name)
    raw = _read(path)
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise UsageError(f"{path}: a recipe is a mapping of keys such as 'dataset' and 'prompt'")
    description, default = raw.pop("description", ""), raw.pop("default", None)
    presets = raw.pop("presets", None) or {}
    if not isinstance(presets, dict) or not all(
        isinstance(name, str) and isinstance(p, dict) for name, p in presets.items()
    ):
        raise UsageError(f"{path}: 'presets' is a mapping from a name to the keys that it sets")
    if len(presets) > _MAX_PRESETS:
        raise UsageError(f"{path}: has {len(presets):,} presets: at most {_MAX_PRESETS}")
    if default is not None and default not in list(presets):
        raise UsageError(
            f"{path}: 'default' names {default!r:.{SHOWN}}, which is not one of its presets"
        )
    recipe = Recipe(path.stem, path, str(description), default, raw, presets)
    began = time.monotonic()
    for preset in (None, *presets):
        validate(Job, recipe.merged(preset), str(path), f"presets.{preset}." if preset else "")
        if time.monotonic() - began > _MAX_CHECKING:
            raise UsageError(
                f"{path}: its templates and patterns take more than {_MAX_CHECKING:.0f} s to check"
            )
    return recipe


def _read(path: Path) -> Any:
    """The values in a recipe's file."""
    try:
        with path.open("rb") as file:
            content = file.read(plain_yaml.MAX_BYTES + 1)
        if len(content) > plain_yaml.MAX_BYTES:
            raise UsageError(f"{path}: is not a recipe: more than {plain_yaml.MAX_BYTES:,} bytes")
        return plain_yaml.load(content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line}: not YAML of a recipe: {error.problem}") from None
