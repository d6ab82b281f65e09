"""Values as data: how arguments go into a program and how answers come out.

JSON, with one-key objects for what JSON lacks:

    {"i": hex}  a big int      {"c": [re, im]}  complex    {"b": hex}  bytes    {"t": [...]}  tuple
    {"s": [...]}  set          {"f": [...]}  frozenset     {"d": [[k, v], ...]}  dict
    {"r": [start, stop, step]}  range                      {"n": [...]}  an iterator, drawn

Only builtin types come out of `decode`, so that no object of a program's own ever meets a
comparison: a subclass is reduced to the builtin it extends, where the program runs. An iterator
stays one, since a test that compares a list with a generator has to fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 200
MAX_ITEMS = 1_000_000
_PLAIN_INT = 1 << 62


class NotLiteral(ValueError):
    """A value that has no literal form (or one that is too large)."""


def encode(value: Any, depth: int = 0) -> Any:
    """A value as JSON-able data. Raises NotLiteral."""
    if depth > MAX_DEPTH:
        raise NotLiteral("nested too deeply")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_PLAIN_INT < number < _PLAIN_INT else {"i": hex(number)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray)):
        return {"b": value.hex()}
    if isinstance(value, list):
        return _items(value, depth)
    if isinstance(value, tuple):
        return {"t": _items(value, depth)}
    if isinstance(value, set):
        return {"s": _items(value, depth)}
    if isinstance(value, frozenset):
        return {"f": _items(value, depth)}
    if isinstance(value, dict):
        return {"d": [_items(pair, depth) for pair in _drawn(dict.items(value))]}
    if isinstance(value, range):
        return {"r": [encode(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, Iterator):
        return {"n": _items(value, depth)}
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return encode(value.item(), depth + 1)
    raise NotLiteral(f"a {type(value).__name__} is not a literal")


def decode(data: Any) -> Any:
    """The value back from `encode`'s form, of builtin types only. Raises NotLiteral."""
    try:
        return _decode(data)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotLiteral("not an encoded literal") from error


def _items(values: Any, depth: int) -> list[Any]:
    return [encode(item, depth + 1) for item in _drawn(values)]


def _drawn(values: Any) -> list[Any]:
    items = list(itertools.islice(iter(values), MAX_ITEMS + 1))
    if len(items) > MAX_ITEMS:
        raise NotLiteral("too many items")
    return items


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return [_decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise NotLiteral("not an encoded literal")
    ((tag, inner),) = data.items()
    match tag:
        case "i":
            return int(inner, 16)
        case "c":
            return complex(*inner)
        case "b":
            return bytes.fromhex(inner)
        case "t":
            return tuple(_decode(inner))
        case "s":
            return set(_decode(inner))
        case "f":
            return frozenset(_decode(inner))
        case "d":
            return {_decode(key): _decode(value) for key, value in inner}
        case "r":
            return range(*_decode(inner))
        case "n":
            return iter(_decode(inner))
    raise NotLiteral("not an encoded literal")
