"""Values of Python's own classes that are made anew on the other side: dates, exceptions."""

from __future__ import annotations

import builtins
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

AS_TEXT: dict[str, type] = {"Decimal": Decimal, "Fraction": Fraction}
AS_FIELDS: dict[str, tuple[type, tuple[str, ...]]] = {
    "datetime": (datetime, ("year", "month", "day", "hour", "minute", "second", "microsecond")),
    "date": (date, ("year", "month", "day")),
    "time": (time, ("hour", "minute", "second", "microsecond")),
    "timedelta": (timedelta, ("days", "seconds", "microseconds")),
}


def fields_of(value: Any) -> list[Any] | None:
    """A date or time as the name of its class, its fields, and whether it is of UTC."""
    name = type(value).__name__
    zone = getattr(value, "tzinfo", None)
    kind, names = AS_FIELDS.get(name, (None, ()))
    if type(value) is not kind or zone not in (None, UTC):
        return None
    return [name, [getattr(value, each) for each in names], zone is not None]


def from_fields(name: str, values: list[int], is_utc: bool) -> Any:
    """The date or time that `fields_of` described."""
    rest = {"tzinfo": UTC} if is_utc else {}
    return AS_FIELDS[name][0](*values, **rest)


def is_exception(kind: Any) -> bool:
    """Whether it is a class of exceptions that a test may get."""
    silent = (StopIteration, StopAsyncIteration)  # would end a loop as if all were well
    return isinstance(kind, type) and issubclass(kind, Exception) and kind not in silent


def made_of(kind: type[Exception], args: list[Any]) -> Exception:
    """An exception that holds these. Only Python's classes are called: others may want more."""
    if kind.__module__ == builtins.__name__:
        try:
            return kind(*args)
        except TypeError:
            pass
    error = kind.__new__(kind)
    error.args = tuple(args)
    return error


def said_by(error: Exception) -> str | None:
    try:
        return str(error)
    except Exception:
        return None
