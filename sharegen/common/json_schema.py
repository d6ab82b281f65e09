"""JSON schemas that llguidance misreads: they are refused, or written differently.

What is known of llguidance 1.9 is here; what it refuses by itself is not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Takes = Callable[[Mapping[str, Any], str], bool]
"""Whether a text of a schema begins so, and goes on."""

_DEEPEST = 123  # levels; the library's parser has 128, and adds some of its own
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGEST = 2**63  # from here on integers overflow in it, or crash it
_EXACT = 2**53

_LITERAL = ("const", "enum")

_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = ("items", "additionalProperties", "additionalItems", "contains", "not", "propertyNames")


def check(schema: Any) -> None:
    """Raise ValueError for a schema that is nested too deeply, or has numbers it cannot keep."""
    _check(schema, 0, "")


def _check(value: Any, depth: int, key: str) -> None:
    if depth > _DEEPEST and isinstance(value, (Mapping, list)):
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if isinstance(value, Mapping):
        for name, below in value.items():
            if key in _OF_SCHEMAS:
                name = ""  # a property's, and no keyword
            if name in _BOUNDS and _is_number(below):
                _check_number(name, below, value.get("type"))
            _check(below, depth + 1, key if key in _LITERAL else name)
    elif isinstance(value, list):
        for below in value:
            _check(below, depth + 1, key)
    elif key in _LITERAL and _is_number(value):
        _check_number(key, value, "number")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_number(key: str, value: float, kind: Any) -> None:
    """Numbers are doubles in the library: another one than the schema says would bound the text.

    kind: of the numbers that it bounds. A double bounds doubles as it is, however large.
    """
    if kind == "number" and isinstance(value, float):
        return
    if not abs(value) < _LARGEST or int(float(value)) != int(value):
        raise ValueError(
            f"{key} is {value!s:.40}, which the library, whose numbers are doubles, does not keep: "
            f"integers up to {_EXACT:,} are exact"
        )


def without_dead_patterns(schema: Any, takes: Takes) -> Any:
    """The schema where `patternProperties` leave room for a key in every object that allows one.

    Where they match declared keys alone, and additional ones are barred, the library lets an object
    go on behind a comma, to where no key may follow (llguidance's issue 265). What they say of a
    declared key is said with the key then, and no pattern is left.
    """
    if not isinstance(schema, Mapping):
        return schema
    found = {name: _below(name, value, takes) for name, value in schema.items()}
    patterns, declared = found.get("patternProperties"), found.get("properties", {})
    if found.get("additionalProperties") is not False or not isinstance(patterns, Mapping):
        return found
    if not isinstance(declared, Mapping) or not patterns:
        return found
    nothing_else = dict.fromkeys(declared, False)
    if any(takes(_keys(nothing_else, pattern), '{"') for pattern in patterns):
        return found
    for key, value in declared.items():
        begin = "{" + json.dumps(key, ensure_ascii=False) + ":"
        also = [said for pattern, said in patterns.items() if takes(_keys({}, pattern), begin)]
        if also:
            found["properties"] = {**found["properties"], key: {"allOf": [value, *also]}}
    del found["patternProperties"]
    return found


def _keys(declared: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    """The schema of objects that have keys of the pattern, and no declared ones."""
    return {
        "type": "object",
        "properties": declared,
        "patternProperties": {pattern: True},
        "additionalProperties": False,
    }


def _below(name: str, value: Any, takes: Takes) -> Any:
    """The value of a keyword, with the schemas in it as they should be."""
    if name in _OF_SCHEMAS and isinstance(value, Mapping):
        return {key: without_dead_patterns(one, takes) for key, one in value.items()}
    if name in _LISTS and isinstance(value, list):
        return [without_dead_patterns(one, takes) for one in value]
    if name in _SINGLE:
        return without_dead_patterns(value, takes)
    return value
