"""Jinja2 templates in the sandbox, strict about what they name, bounded in time and text.

A template sees the row's fields and nothing else; it cannot reach Python's internals, and a field
that the row does not have is an error instead of an empty string. One that only puts fields in, as
most do, is filled in here. Any other is a program, which a process with limits compiles, too: that
is when Jinja computes its constants.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, time
from numbers import Number
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, UndefinedError, meta, nodes
from jinja2 import Template as Compiled
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sharegen.common import confined
from sharegen.common.json_values import is_nan
from sharegen.common.names import listed, nearest

MAX_SOURCE = 2**18
"""Characters of a template."""

MAX_TEXT = 2**24
"""Characters that it may give."""

FIELDS = "fields"
"""What stands in a template for the fields that are free to move."""

FAILURES = (
    TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError,
    RuntimeError, SyntaxError, AssertionError,
)  # fmt: skip
"""What templates are seen to raise: when they are parsed, compiled (as Python) and rendered."""

_SAID = 200  # characters of a failure


class RenderError(Exception):
    """What a template could not do with a row, in words that complete '<row>: ...'."""


class Overrun(RenderError):
    """The template takes too much time or memory, as it would with the next row."""


class _Missing(Exception):
    """A template uses what the row does not have."""


class _NotText(Exception):
    """A template writes what would be Python's own spelling of it; value: what it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True)
class _Field:
    """A place in a template where a field goes in as it is."""

    name: str


def is_text(value: Any) -> bool:
    """Whether a field reads as text: a text, a number, a date; no list, no object and no NaN."""
    return isinstance(value, (str, Number, date, time)) and not is_nan(value)


def _written(value: Any) -> Any:
    """What a template writes out, as it is."""
    if is_text(value) or isinstance(value, Undefined):  # the latter has an error of its own
        return value
    raise _NotText(value)


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False, finalize=_written
)


def check(text: str) -> str:
    """The text itself when it is a template; ValueError otherwise."""
    if len(text) > MAX_SOURCE:
        raise ValueError(f"not a template: more than {MAX_SOURCE:,} characters")
    names(text)
    return text


@functools.lru_cache(maxsize=256)
def names(text: str) -> frozenset[str]:
    """The fields that a template uses. Raises ValueError for what is no template."""
    pieces = _pieces(text)
    if pieces is not None:
        return frozenset(piece.name for piece in pieces if isinstance(piece, _Field))
    try:
        return confined.call(_names_of_program, text)
    except confined.Exceeded as error:
        raise ValueError(f"not a template: compiling it {error}") from None


def only_field(text: str) -> str | None:
    """The field of a template that writes this field and nothing else."""
    match = re.fullmatch(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}\s*", text)
    return match[1] if match else None


def render(key: str, text: str, fields: Mapping[str, Any]) -> str:
    """The template of a recipe's `key` with a row's fields.

    Raises RenderError naming the template, the missing field and the fields that there are, or the
    field that is written and is not text.
    """
    pieces = _pieces(text)
    try:
        if pieces is not None:
            rendered = _fill(pieces, fields)
        else:
            used = names(text) | _ENVIRONMENT.globals.keys()  # a field may be called `range`
            known = {name: value for name, value in fields.items() if name in used}
            rendered = confined.call(_run, text, known)
    except confined.Exceeded as error:
        raise Overrun(f"the template '{key}' {error}") from None
    except _Missing as error:
        missing = sorted(names(text) - set(fields) - set(_ENVIRONMENT.globals))
        if not missing:
            raise RenderError(f"the template '{key}' fails: {error}") from None
        raise RenderError(
            f"the template '{key}' uses the field '{missing[0]}', which the row does not have "
            f"(it has {listed(fields)}): {instead(missing[0], fields)}"
        ) from None
    except RenderError as error:
        raise RenderError(f"the template '{key}' {error}") from None
    place = half_character(rendered)
    if place is not None:
        half = rendered[place]
        raise RenderError(f"the template '{key}' gives no text: {half!a} is half of a character")
    return rendered


_NO_COLUMNS = {
    "examples": "they stand in 'prompt' alone; those of a chat are turns in front of the problem's",
    FIELDS: "it is what 'prompt.free' declares, in 'prompt' or 'chat.user'",
}


def instead(name: str, fields: Mapping[str, Any]) -> str:
    """What to do about a field that a row lacks: most often its column has another name."""
    if name in _NO_COLUMNS:
        return _NO_COLUMNS[name]
    column = nearest(name, list(map(str, fields))) or "COLUMN"
    return f"--set dataset.fields.{name}={column}"


def half_character(text: str) -> int | None:
    """Return where a text first holds half of a surrogate pair, which nothing encodes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def said(error: Exception) -> str:
    """A failure in one short line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return (" ".join(str(error).split()) or type(error).__name__)[:_SAID]


@functools.lru_cache(maxsize=256)
def _pieces(text: str) -> tuple[str | _Field, ...] | None:
    """Text and fields in turn, where a template is nothing else."""
    try:
        body = _ENVIRONMENT.parse(text).body
    except (TemplateError, ValueError, RecursionError) as error:
        raise ValueError(f"not a template: {said(error)}") from None
    pieces: list[str | _Field] = []
    for statement in body:
        for node in statement.nodes if isinstance(statement, nodes.Output) else [statement]:
            if isinstance(node, nodes.TemplateData):
                pieces.append(node.data)
            elif isinstance(node, nodes.Name) and not _is_jinjas(node.name):
                pieces.append(_Field(node.name))
            else:
                return None
    return tuple(pieces)


def _is_jinjas(name: str) -> bool:
    return name == "self" or name in _ENVIRONMENT.globals


def _fill(pieces: tuple[str | _Field, ...], fields: Mapping[str, Any]) -> str:
    """What `_run` would give."""

    def values() -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, str):
                yield piece
            elif piece.name in fields:
                yield str(_written(fields[piece.name]))
            else:
                raise _Missing(piece.name)

    return _guarded(values(), fields)


def _run(text: str, fields: Mapping[str, Any]) -> str:
    """A template with a row's fields. Raises RenderError and _Missing.

    Where it draws at random (`| random`), it draws the same for the same row.
    """
    random.seed(repr(sorted(fields.items())))
    return _guarded(_compiled(text).generate(dict(fields)), fields)


def _guarded(parts: Iterator[str], fields: Mapping[str, Any]) -> str:
    """The parts of a text as one, and what making them raises as a RenderError."""
    found: list[str] = []
    length = 0
    try:
        for part in parts:
            found.append(part)
            length += len(part)
            if length > MAX_TEXT:
                raise RenderError(f"gives more than {MAX_TEXT:,} characters")
    except UndefinedError as error:
        raise _Missing(said(error)) from None
    except _NotText as error:
        name = next((name for name, value in fields.items() if value is error.value), None)
        what = "a value" if name is None else f"the field {name!r}"
        raise RenderError(
            f"writes {what}, which is {_kind(error.value)}: that is not text (name a part of it, "
            "or join its parts)"
        ) from None
    except FAILURES as error:
        raise RenderError(f"fails: {said(error)}") from None
    return "".join(found)


def _kind(value: Any) -> str:
    return "NaN, a missing value" if is_nan(value) else f"of type {type(value).__name__}"


@functools.lru_cache(maxsize=256)
def _compiled(text: str) -> Compiled:
    return _ENVIRONMENT.from_string(text)


def _names_of_program(text: str) -> frozenset[str]:
    """The fields that a template uses which compiles; ValueError otherwise."""
    try:
        _compiled(text)
        return frozenset(meta.find_undeclared_variables(_ENVIRONMENT.parse(text)))
    except FAILURES as error:
        raise ValueError(f"not a template: {said(error)}") from None
