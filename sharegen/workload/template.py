"""Jinja2 templates in the sandbox, strict about what they name.

A template sees the row's fields and nothing else; it cannot reach Python's internals, and a field
that the row does not have is an error instead of an empty string.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from datetime import date, time
from numbers import Number
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, UndefinedError, meta
from jinja2 import Template as Compiled
from jinja2.sandbox import ImmutableSandboxedEnvironment


class RenderError(Exception):
    """What a template could not do with a row, in words that complete '<row>: ...'."""


class _NotText(Exception):
    """A template writes what would be Python's own spelling of it; value: what it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


def is_text(value: Any) -> bool:
    """Whether a field reads as text: a text, a number, a date; no list and no object."""
    return isinstance(value, (str, Number, date, time))


def _written(value: Any) -> Any:
    """What a template writes out, as it is."""
    if is_text(value) or isinstance(value, Undefined):  # the latter has an error of its own
        return value
    raise _NotText(value)


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False, finalize=_written
)


@functools.cache
def _compiled(text: str) -> Compiled:
    return _ENVIRONMENT.from_string(text)


def check(text: str) -> str:
    """The text itself when it is a template; ValueError otherwise."""
    try:
        _compiled(text)
    except TemplateError as error:
        raise ValueError(f"not a template: {error}") from None
    return text


def names(text: str) -> set[str]:
    """The fields that a template uses."""
    return meta.find_undeclared_variables(_ENVIRONMENT.parse(text))


def only_field(text: str) -> str | None:
    """The field of a template that writes this field and nothing else."""
    match = re.fullmatch(r"\{\{\s*([A-Za-z_]\w*)\s*\}\}\s*", text)
    return match[1] if match else None


def render(key: str, text: str, fields: Mapping[str, Any]) -> str:
    """The template of a recipe's `key` with a row's fields.

    Raises RenderError naming the template, the missing field and the fields that there are, or the
    field that is written and is no text.
    """
    try:
        rendered = _compiled(text).render(fields)
    except UndefinedError as error:
        missing = sorted(names(text) - set(fields) - set(_ENVIRONMENT.globals))
        if missing:
            has = ", ".join(fields) or "none"
            raise RenderError(
                f"the template '{key}' uses the field '{missing[0]}', which the row does not have "
                f"(it has {has})"
            ) from None
        raise RenderError(f"the template '{key}' fails: {error}") from None
    except _NotText as error:
        name = next((name for name, value in fields.items() if value is error.value), None)
        what = "a value" if name is None else f"the field {name!r}"
        raise RenderError(
            f"the template '{key}' writes {what}, which is of type {type(error.value).__name__}: "
            "that is no text (name a part of it, or join its parts)"
        ) from None
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise RenderError(f"the template '{key}' fails: {error}") from None
    place = half_character(rendered)
    if place is not None:
        half = rendered[place]
        raise RenderError(f"the template '{key}' gives no text: {half!a} is half of a character")
    return rendered


def half_character(text: str) -> int | None:
    """Where a text first holds half of a surrogate pair, which nothing encodes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
