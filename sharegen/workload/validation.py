"""A mapping as a section of a recipe, or one line that names the key that is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sharegen.common.names import SHOWN, nearest
from sharegen.common.parameters.parameter import declared
from sharegen.common.wrong_value import in_words
from sharegen.errors import UsageError


class Strict(BaseModel):
    """A section of a recipe: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """A key that has another type here than in its group keeps what is said of it."""
        found = handler(core_schema)
        schema = handler.resolve_ref_schema(found)
        for name, each in declared(cls).items():
            for word, said in each.parameter.in_schema().items():
                schema["properties"][name].setdefault(word, said)
        return found


Section = TypeVar("Section", bound=BaseModel)


def validate(
    model: type[Section],
    value: Mapping[str, Any],
    where: str,
    prefix: str = "",
    flags: Mapping[str, str] = MappingProxyType({}),
) -> Section:
    """Return `value` as a `model`, or raise one UsageError naming `where`, the key and the nearest
    valid one.

    flags: the keys that the command line set -> the flag, which is then named instead of `where`.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = error.errors(include_url=False)
    unknown = (error for error in errors if error["type"] == "extra_forbidden")
    first = next(unknown, errors[0])  # a key that is missing may have been misspelt
    path = _as_given([part for part in first["loc"] if isinstance(part, str)], value)
    key = ".".join(path)
    section = ".".join(path[:-1]) if first["type"] == "missing" else key
    flag = next((flags[given] for given in flags if _overlap(given, section)), None)
    where = flag or where
    if first["type"] == "extra_forbidden":
        near = _meant(model, path)
        hint = f"did you mean {near!r}?" if near else "remove it, or check the section it is in"
        raise UsageError(f"{where}: unknown key {prefix + key!r:.{SHOWN}}: {hint}")
    if first["type"] == "missing":
        raise UsageError(f"{where}: the key {prefix + key!r} is missing")
    what = flag or f"{where}: {prefix + key}"
    raise UsageError(f"{what} is {first['input']!r:.{SHOWN}}: {in_words(first)}")


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


_OF_OTHERS = {
    "n": "sampling.samples", "num_return_sequences": "sampling.samples",
    "max_new_tokens": "sampling.max_tokens", "max_gen_toks": "sampling.max_tokens",
    "until": "sampling.stop", "num_fewshot": "few_shot.k", "fewshot_split": "few_shot.split",
    "test_split": "dataset.split", "dataset_path": "dataset.source",
    "dataset_name": "dataset.config", "columns": "dataset.fields", "rename": "dataset.fields",
    "doc_to_text": "prompt", "doc_to_target": "answer.gold",
    "system_prompt": "chat.system", "regex_pattern": "answer.patterns", "regex": "answer.patterns",
    "target": "answer.gold", "answer_pattern": "answer.patterns",
}  # fmt: skip
"""Names of other tools (lm-eval, vLLM, transformers) -> the key that says the same here."""


def _meant(model: type[BaseModel], path: Sequence[str]) -> str | None:
    """The key that an unknown one was probably meant to be: of its section, or of another.

    If several sections have the name, it is the first of them.
    """
    name, own = path[-1], _keys_at(model, path[:-1])
    elsewhere: dict[str, str] = {}
    for dotted in _dotted(model):
        elsewhere.setdefault(dotted.rpartition(".")[2], dotted)
    misspelt = nearest(name, own, cutoff=0.8)
    found = misspelt or elsewhere.get(name) or _OF_OTHERS.get(name) or nearest(name, own)
    near = nearest(name, list(elsewhere)) if found is None else None
    return found if near is None else elsewhere[near]


def _dotted(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[str]:
    """All keys of a model and of the sections in it."""
    for name in _keys_at(model, prefix):
        yield ".".join((*prefix, name))
        yield from _dotted(model, (*prefix, name))


def _keys_at(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path:
        field = model.model_fields.get(part)
        kinds = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)
