"""What a completion's text has to be: a JSON schema, a regular expression, choices or a grammar.

Two spellings of one thing: vLLM's `StructuredOutputsParams` and OpenAI's `response_format`. What
they say is parsed by llguidance: see `grammar.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sharegen.common.vllm_names import STRUCTURED_NOT_HERE, refusing
from sharegen.errors import UsageError

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_SHOWN = 200  # characters of a value


@refusing(STRUCTURED_NOT_HERE)
@dataclass(frozen=True)
class StructuredOutputsParams:
    """One of vLLM's kinds of structured output; the text of a completion that ends is of it.

    json: a JSON schema, as a mapping or as text. Properties come in the schema's order.
    regex: a regular expression that the whole text matches, in Rust's syntax: no look-around, no
        back-references.
    choice: texts, of which the completion is one.
    grammar: a context-free grammar in Lark's syntax with the rule `start`, or in GBNF's with
        `root`.
    json_object: True for any JSON object.
    disable_any_whitespace: of json and json_object: none between the parts of the JSON.

    Raises UsageError where not exactly one kind is given, or not in its form.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False

    def __post_init__(self) -> None:
        if self.json_object is False:
            object.__setattr__(self, "json_object", None)
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            said = f"has {' and '.join(given)}" if given else "says nothing"
            raise UsageError(f"structured_outputs {said}: give one of {', '.join(_KINDS)}")
        [kind] = given
        value = getattr(self, kind)
        if kind == "json":
            object.__setattr__(self, "json", _schema_text(value))
        elif kind == "choice":
            object.__setattr__(self, "choice", _choices(value))
        elif kind == "json_object":
            if value is not True:
                raise UsageError(f"structured_outputs.json_object is {value!r}: it is true or not")
        elif not isinstance(value, str) or not value:
            raise UsageError(
                f"structured_outputs.{kind} is {value!r:.{_SHOWN}}: it must be a text, not empty"
            )
        try:
            "".join(getattr(self, kind) if kind != "json_object" else ()).encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"structured_outputs.{kind} is not text: {error.reason}") from None
        if not isinstance(self.disable_any_whitespace, bool):
            raise UsageError("structured_outputs.disable_any_whitespace must be true or false")

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @classmethod
    def of(cls, value: Any) -> StructuredOutputsParams | None:
        """Make one from a mapping of these names, as in a recipe or row; None stays None."""
        if value is None or isinstance(value, cls):
            return value
        names = [field.name for field in fields(cls)]
        if not isinstance(value, Mapping):
            raise UsageError(
                f"structured_outputs is {value!r:.80}: give a mapping with one of "
                f"{', '.join(_KINDS)}"
            )
        unknown = [name for name in value if name not in names]
        if unknown:
            instead = STRUCTURED_NOT_HERE.get(unknown[0], f"give one of {', '.join(_KINDS)}")
            raise UsageError(f"structured_outputs has no {unknown[0]!r:.80}: {instead}")
        return cls(**value)

    def as_dict(self) -> dict[str, Any]:
        """What is given, as plain JSON; `of` takes it back."""
        value = getattr(self, self.kind)
        found: dict[str, Any] = {self.kind: list(value) if self.kind == "choice" else value}
        return found | ({"disable_any_whitespace": True} if self.disable_any_whitespace else {})


def from_response_format(value: Any) -> StructuredOutputsParams | None:
    """What OpenAI's `response_format` asks for; None for plain text.

    value: {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema":
    {"name": ..., "schema": {...}}}; `strict` and `description` may stand beside the schema, which
    is always kept to. Raises UsageError for anything else.
    """
    where = "response_format"
    if value is None:
        return None
    kinds = {"text": {"type"}, "json_object": {"type"}, "json_schema": {"type", "json_schema"}}
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise UsageError(f"{where} is {value!r:.80}: its type is one of {', '.join(kinds)}")
    _refuse_unknown(where, value, kinds[kind])
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    inner = value.get("json_schema")
    where = "response_format.json_schema"
    if not isinstance(inner, Mapping) or inner.get("schema") is None:
        raise UsageError(f"{where} is {inner!r:.80}: it needs a name and a schema")
    _refuse_unknown(where, inner, {"name", "schema", "strict", "description"})
    if not isinstance(inner.get("name"), str) or not inner["name"]:
        raise UsageError(f"{where}.name is missing: it is a text")
    if inner.get("strict") not in (None, True, False):
        raise UsageError(f"{where}.strict is {inner['strict']!r:.80}: it is true or false")
    return StructuredOutputsParams(json=inner["schema"])


def _refuse_unknown(where: str, value: Mapping[str, Any], known: set[str]) -> None:
    for name in value:
        if name not in known:
            raise UsageError(f"{where} has no field {str(name)!r:.80}")


def _schema_text(value: Any) -> str:
    """A schema as JSON text, its keys in the order given."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"structured_outputs.json is not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise UsageError(f"structured_outputs.json is {value!r:.80}: a JSON schema is a mapping")
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"structured_outputs.json is not JSON: {error}") from None


def _choices(value: Any) -> tuple[str, ...]:
    good = isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) > 0
    if not good or not all(isinstance(choice, str) for choice in value):
        raise UsageError(
            f"structured_outputs.choice is {value!r:.80}: it must be a list of texts, not empty"
        )
    return tuple(value)
