"""Kinds of values that a recipe's keys take, each with its checks."""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from sharegen.workload import template

_MAX_PATTERN = 1_000  # characters


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


def _check_moment(value: Any) -> Any:
    """A date or a date with a time, in ISO's spelling; YAML reads some as such already."""
    text = value.isoformat() if isinstance(value, date) else value
    if isinstance(text, str):
        try:
            datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("neither a date as 2026-11-26, nor with a time behind it") from None
    return text


Moment = Annotated[str, BeforeValidator(_check_moment), WithJsonSchema({"type": "string"})]
"""A date, or a date with a time."""

Place = Annotated[str, Field(max_length=4_000), AfterValidator(_check_place)]
"""A file, a folder or a hub id."""

Revision = Annotated[str, Field(min_length=1, max_length=250)]
"""A branch, tag or commit on the hub."""

_TEXT = {"type": "string"}

Names = Annotated[
    list[str],
    BeforeValidator(_as_list),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}),
]
"""One name, or several of which the first that is there counts."""


def _check_columns(names: list[str]) -> list[str]:
    if any("{{" in name or "{%" in name for name in names):
        raise ValueError("a column's name, and no template (answer.gold.template may be meant)")
    return names


Columns = Annotated[Names, AfterValidator(_check_columns)]
"""One column, or several of which the first that is there counts."""

Template = Annotated[str, AfterValidator(template.check)]
"""A template over the fields of a row."""

Pattern = Annotated[str, AfterValidator(_check_pattern)]
"""A regular expression."""

NonEmpty = Annotated[str, Field(min_length=1)]
