"""What a job consists of, and the YAML files that name such jobs.

A recipe is a job with holes: its presets fill them (a dataset with its model), then the command's
flags do (see configuration.py). Every layer is a plain mapping that is merged into the one below
and validated as a whole, so that a preset or a flag can set whatever a recipe can. No code runs
when a recipe is loaded, and a stranger's one costs no more time and memory than one of ours.
"""

from __future__ import annotations

import difflib
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sharegen.common.stop_rule import StopRule
from sharegen.common.structured import StructuredOutputsParams
from sharegen.common.wrong_value import in_words
from sharegen.errors import UsageError
from sharegen.workload import conversation, plain_yaml, template

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
"""The folder of the recipes that ship with sharegen."""

MAX_SAMPLES = 1_000_000
"""Of one problem: no estimate needs more, and a slip of the hand should not fill the memory."""


_MAX_PRESETS = 100
_MAX_WORDS = 10_000_000  # of a document that is made: more than any context holds
_MAX_PATTERN = 1_000  # characters
_MAX_CHECKING = 10.0  # seconds, of all presets: none of ours takes a tenth of one
_SHOWN = 80  # characters of a wrong value


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _check_pattern(text: str) -> str:
    if len(text) > _MAX_PATTERN:
        raise ValueError(f"not a pattern: more than {_MAX_PATTERN:,} characters")
    try:
        re.compile(text)
    except RecursionError:
        raise ValueError("not a regular expression: it is nested too deeply") from None
    except (re.error, ValueError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _check_place(text: str) -> str:
    """A path or hub id that can be asked for: the system takes no others, some with an error."""
    if "\0" in text or any(len(name.encode("utf-8", "replace")) > 255 for name in text.split("/")):
        raise ValueError("neither a path nor a hub id: a name in it is too long or holds a NUL")
    return text


Place = Annotated[str, Field(max_length=4_000), AfterValidator(_check_place)]
"""A file, a folder or a hub id."""

Revision = Annotated[str, Field(min_length=1, max_length=250)]
"""A branch, tag or commit on the hub."""

Names = Annotated[list[str], BeforeValidator(_as_list)]
"""One name, or several of which the first that is there counts."""


def _check_rule(text: str) -> str:
    """A rule in its one spelling: `window` is `window=5`."""
    return str(StopRule.parse(text))


def _check_kwargs(values: dict[str, Any]) -> dict[str, Any]:
    taken = conversation.reserved(values)
    if taken is not None:
        raise ValueError(f"{taken!r} is no variable of the template's own")
    return values


def _check_structured(value: dict[str, Any]) -> dict[str, Any]:
    """In its one spelling: of a schema its text, in which the order of the properties counts.

    What the grammar itself says is looked at when a job is made: a journal is read without.
    """
    try:
        asked = StructuredOutputsParams.of(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    assert asked is not None
    return asked.as_dict()


Structured = Annotated[dict[str, Any], AfterValidator(_check_structured)]
Rule = Annotated[str, AfterValidator(_check_rule)]
Template = Annotated[str, AfterValidator(template.check)]
Pattern = Annotated[str, AfterValidator(_check_pattern)]
NonEmpty = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Strict(BaseModel):
    """A section of a recipe: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Section = TypeVar("Section", bound=BaseModel)


class Needles(Strict):
    """A document made for the job, with facts planted through it (see needle.py).

    words: of the document, about; questions: facts that are asked for; examples: facts for the
    few-shot examples.
    """

    words: int = Field(default=16000, ge=1, le=_MAX_WORDS)
    questions: int = Field(default=64, ge=1)
    examples: int = Field(default=5, ge=0)
    seed: int = 0


class Dataset(Strict):
    """Where the rows come from and what they mean.

    source: a file, a folder (relative ones lie beside the recipe) or a hub id.
    needles: rows that are made instead. document: a text file that every row has as the field
        `document`.
    config, split: as the `datasets` library names them; a local folder has a file per split.
    revision: branch, tag or commit of a dataset on the hub; null is its main one.
    requests: whether the rows are the lines of an OpenAI batch file, which bring prompts and
        sampling parameters of their own.
    rows: the schema of the rows when it takes code to read it (`apps`, `humaneval`, `mbpp`).
    id: columns that may hold the problem's id; without any, the row's index in the split.
    fields: name in the templates -> the column, or columns to try in order.
    where: keep only the rows whose field has this value.
    limit: the first so many rows that `where` keeps.
    """

    source: Place | None = None
    needles: Needles | None = None
    document: Place | None = None
    config: str | None = None
    split: str = "test"
    revision: Revision | None = None
    requests: bool = False
    rows: str | None = None
    id: Names = ["problem_id", "task_id", "id"]
    fields: dict[str, Names] = {}
    where: dict[str, Any] = {}
    limit: int | None = Field(default=None, ge=1)


class FewShot(Strict):
    """Which worked examples stand before every problem: the same for the whole run.

    k: how many.
    split: of the dataset; file: a file of its own instead.
    indices: these rows in this order; else seed: k rows drawn with it; else the first k.
    """

    k: int = Field(default=0, ge=0)
    split: str = "train"
    file: Place | None = None
    indices: list[int] | None = None
    seed: int | None = None
    where: dict[str, Any] = {}


class Sampling(Strict):
    """How to draw and where to stop; names and ranges are those of `SamplingParams`.

    max_tokens: of a sample; null is all that the context has room for. logprobs: how many of the
    likeliest tokens the journal has with each token's own log-probability; prompt_logprobs: of the
    prompt's tokens, in the line of its first sample. detokenize: whether samples have a text.
    structured_outputs: what texts have to be, one of json, regex, choice, grammar and json_object.
    stop_when: the rule by which a problem has samples enough before all are drawn (StopRule).
    decoding: "beam" finds the likeliest texts instead of drawing any, and keeps the best `samples`
        of them. beam_width: how many it follows; null is as many as it keeps. length_penalty,
        early_stopping: names and ranges are those of `BeamSearchParams`.
    """

    samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    temperature: float = Field(default=1.0, ge=0, le=1e6, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, lt=1)
    repetition_penalty: float = Field(default=1.0, ge=1e-6, le=1e6, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-1e30, le=1e30)]] = {}
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    bad_words: list[NonEmpty] = []
    max_tokens: int | None = Field(default=256, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    stop: list[NonEmpty] = []
    stop_token_ids: list[TokenId] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured_outputs: Structured | None = None
    logprobs: int | None = Field(default=None, ge=0)
    prompt_logprobs: int | None = Field(default=None, ge=0)
    seed: int = 0
    stop_when: Rule | None = None
    decoding: Literal["sample", "beam"] = "sample"
    beam_width: int | None = Field(default=None, ge=1)
    length_penalty: float = Field(default=1.0, ge=-100, le=100)
    early_stopping: bool | Literal["never"] = False

    @property
    def rows(self) -> int:
        """Rows that a problem takes, if all of them run: one a sample, or one a beam."""
        if self.decoding == "sample":
            return self.samples
        return self.samples if self.beam_width is None else self.beam_width

    @property
    def rule(self) -> StopRule | None:
        return None if self.stop_when is None else StopRule.parse(self.stop_when)

    def problem_tokens(self, context_length: int) -> int:
        """Tokens that are drawn for a problem, at most."""
        return self.rows * (self.max_tokens or context_length)


class Gold(Strict):
    """The known answer of a row: what `pattern`'s group finds in a field, or all of the field."""

    field: str
    pattern: Pattern | None = None


class Answer(Strict):
    """How to find the answer in a completion.

    patterns: regular expressions, tried in order; the first that matches decides, its first
        group (or all of it) is the answer.
    match: which of a pattern's matches counts.
    measure: what the share of right answers is called.
    """

    patterns: Annotated[list[Pattern], Field(min_length=1, max_length=20)]
    match: Literal["first", "last"] = "last"
    gold: Gold | None = None
    measure: str = "accuracy"


class Chat(Strict):
    """The same prompts as turns of the tokenizer's chat template.

    enabled: whether to use it; system: the system message's template; user, assistant: templates
    of one example's turns (user also of the problem's own); stop: replaces the sampling's stops.
    The others hold for rows that bring conversations, too. template: a file with a chat template in
    place of the tokenizer's. template_kwargs: variables of the template's own, such as
    `enable_thinking`. tools: schemas of functions, which the template writes out; a row's `tools`
    replace them.
    add_generation_prompt: whether an answer begins a turn of its own; unless it is said, a
    conversation must not end with the assistant. continue_final_message: whether an answer goes on
    within the last turn.
    """

    enabled: bool = False
    system: Template | None = None
    user: Template | None = None
    assistant: Template | None = None
    stop: list[NonEmpty] = []
    template: Place | None = None
    template_kwargs: Annotated[dict[str, Any], AfterValidator(_check_kwargs)] = {}
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


class Prompt(Strict):
    """What is asked: a template, or one in which some fields of the row may stand in any order.

    text: the template; `prompt: "..."` says it alone.
    free: fields that are free to move. They stand where the template (`chat.user` of a chat) writes
        `{{ fields }}`, in this order unless `--reorder` finds one that shares more.
    line: the template of one of them, over its `name` and its `value`.
    """

    text: Template
    free: list[NonEmpty] = []
    line: Template = "{{ name }}: {{ value }}\n"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if not isinstance(value, str | Mapping | Prompt):
            raise ValueError("it must be a text, or a mapping with 'text' and 'free'")
        return {"text": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_free(self) -> Prompt:
        twice = [name for name in self.free if self.free.count(name) > 1]
        if twice:
            raise ValueError(f"{twice[0]!r} stands twice among the free fields")
        return self

    @model_serializer(mode="wrap")
    def _as_text(self, dumped: SerializerFunctionWrapHandler) -> Any:
        return dumped(self) if self.free else self.text


class _OrText:
    """Tells a section's JSON schema that a text will do."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(core_schema)]}


class Keep(Strict):
    """What the journal's lines hold of their row, so that they can be read without the dataset.

    prompt: whether the text or the turns that were asked; fields: which of the row's fields.
    """

    prompt: bool = False
    fields: Names = []


class Job(Strict):
    """Everything that decides what is asked and how it is answered, bar the machine.

    model: a folder or a hub id; adapter: a LoRA adapter (likewise), merged at load.
    revision: branch, tag or commit of a model on the hub; null is its main one.
    trust_remote_code: whether code that comes with the model may run. A recipe says so to tell that
        its model needs it; the command's flag decides.
    """

    model: Place | None = None
    adapter: Place | None = None
    revision: Revision | None = None
    trust_remote_code: bool = False
    dataset: Dataset = Dataset()
    prompt: Annotated[Prompt, _OrText()]
    example: Template | None = None
    few_shot: FewShot = FewShot()
    chat: Chat = Chat()
    sampling: Sampling = Sampling()
    answer: Answer | None = None
    keep: Keep = Keep()
    vote: bool = False


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
    def ships(self) -> bool:
        """Whether it is one of ours."""
        return self.path.parent == RECIPES

    def merged(self, preset: str | None) -> dict[str, Any]:
        """The job's mapping with one preset on top (None: the bare recipe)."""
        return merge(self.job, self.presets[preset]) if preset else self.job


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` on top, mapping by mapping; lists and scalars are replaced."""
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        out[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return out


def recipe_names() -> list[str]:
    """The recipes that ship with sharegen."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find_recipe(name: str) -> Path:
    """The file of a recipe given by name or by path. Raises UsageError with the nearest names."""
    known = named(name, recipe_names())
    if known is not None:
        return RECIPES / f"{known}.yaml"
    path = Path(os.path.expanduser(name))
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if path.is_file():
            return path.resolve()
        raise UsageError(f"{name}: no such recipe file")
    near = nearest(name, recipe_names())
    hint = f"did you mean {near!r}?" if near else f"there are {', '.join(recipe_names())}"
    raise UsageError(f"unknown recipe {name!r}: {hint} (your own recipe is a path to a YAML file)")


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
            f"{path}: 'default' names {default!r:.{_SHOWN}}, which is not one of its presets"
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
            raise UsageError(f"{path}: is no recipe: more than {plain_yaml.MAX_BYTES:,} bytes")
        return plain_yaml.load(content.decode("utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{path}{line}: not YAML of a recipe: {error.problem}") from None


def validate(
    model: type[Section],
    value: Mapping[str, Any],
    where: str,
    prefix: str = "",
    flags: Mapping[str, str] = MappingProxyType({}),
) -> Section:
    """`value` as a `model`, or one UsageError naming `where`, the key and the nearest valid one.

    flags: the keys that the command line set -> the flag, which is then named instead of `where`.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    path = _as_given([part for part in first["loc"] if isinstance(part, str)], value)
    key = ".".join(path)
    section = ".".join(path[:-1]) if first["type"] == "missing" else key
    flag = next((flags[given] for given in flags if _overlap(given, section)), None)
    where = flag or where
    if first["type"] == "extra_forbidden":
        near = nearest(path[-1], _keys_at(model, path[:-1]))
        hint = f"did you mean {near!r}?" if near else "remove it, or check the section it is in"
        raise UsageError(f"{where}: unknown key {prefix + key!r:.{_SHOWN}}: {hint}")
    if first["type"] == "missing":
        raise UsageError(f"{where}: the key {prefix + key!r} is missing")
    what = flag or f"{where}: {prefix + key}"
    raise UsageError(f"{what} is {first['input']!r:.{_SHOWN}}: {in_words(first)}")


def _as_given(path: list[str], value: Any) -> list[str]:
    """A key as it was given: the text of a section that a text will do for is that section."""
    for place, part in enumerate(path):
        if isinstance(value, str):
            return path[:place]
        value = value.get(part) if isinstance(value, Mapping) else None
    return path


def _overlap(key: str, other: str) -> bool:
    """Whether one of two dotted keys is the other or a section that it is in."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The name that `name` was probably meant to be."""
    by_case = {known.casefold(): known for known in names}
    found = difflib.get_close_matches(name[:_SHOWN].casefold(), by_case, n=1, cutoff=0.5)
    return by_case[found[0]] if found else None


def named(name: str, names: Iterable[str]) -> str | None:
    """The one of the names that `name` is, whatever its case: GSM8K is gsm8k."""
    return next((known for known in names if known.casefold() == name.casefold()), None)
