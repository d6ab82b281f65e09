"""Schemas that the library takes for others than they are."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import jsonschema
import llguidance
import pytest

from sharegen.common import grammar, json_schema
from sharegen.common.grammar import prepared
from sharegen.common.structured import StructuredOutputsParams
from sharegen.errors import UsageError

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
OF_A_AND_B = {"a": DIGIT, "b": DIGIT}


def texts(schema: Any, count: int = 64, length: int = 60) -> list[tuple[str, bool]]:
    """Texts that are drawn at random below the schema's masks, and whether each is complete."""
    asked = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    source, found = prepared(asked), []
    tokenizer = llguidance.LLTokenizer("byte")
    for seed in range(count):
        rng, text = random.Random(seed), bytearray()
        matcher = llguidance.LLMatcher(tokenizer, source, log_level=0)
        while len(text) < length and not (matcher.is_accepting() and rng.random() < 0.3):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [byte for byte in range(256) if mask >> byte & 1]
            if matcher.is_error() or not allowed:
                break
            text.append(rng.choice([b for b in allowed if b in b'",:}'] or allowed))
            matcher.consume_token(text[-1])
        found.append((text.decode(), matcher.is_accepting()))
    return found


@pytest.mark.turn(4)
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": OF_A_AND_B, "patternProperties": {"^(a|b)$": {"type": "integer"}}},
        {"properties": OF_A_AND_B, "patternProperties": {"^a$": True, "^b$": {"minimum": 4}}},
        {"properties": {'é"': DIGIT}, "patternProperties": {'^é"$': {"maximum": 3}}},
        {"properties": {"a": DIGIT}, "required": ["a"], "patternProperties": {"^a$": DIGIT}},
    ],
)
@pytest.mark.parametrize("place", ["root", "property", "item", "definition"])
def test_patterns_of_declared_keys_alone_leave_no_text_without_an_end(
    schema: dict[str, Any], place: str
) -> None:
    one = {"type": "object", **schema, "additionalProperties": False}
    whole = {
        "root": one,
        "property": {"type": "object", "properties": {"x": one}, "additionalProperties": False},
        "item": {"type": "array", "prefixItems": [one], "items": False, "minItems": 1},
        "definition": {"$defs": {"one": one}, "anyOf": [{"$ref": "#/$defs/one"}]},
    }[place]
    drawn = texts(whole)
    assert all(is_complete for _, is_complete in drawn)
    for text, _ in drawn:
        jsonschema.validate(json.loads(text), whole)
    assert len({text for text, _ in drawn}) > 1


def test_patterns_that_leave_room_stay() -> None:
    taken = grammar._takes
    for schema in (
        {"properties": {"a": DIGIT}, "patternProperties": {"^a": DIGIT}},
        {"properties": {"a": DIGIT}, "patternProperties": {"^a$": True, "x": DIGIT}},
        {"patternProperties": {"^a$": DIGIT}},
        {"properties": {"a": DIGIT}, "patternProperties": {}},
    ):
        closed = {"type": "object", **schema, "additionalProperties": False}
        assert json_schema.without_dead_patterns(closed, taken) == closed
        open_to_others = {"properties": {"a": DIGIT}, "patternProperties": {"^a$": DIGIT}}
        assert json_schema.without_dead_patterns(open_to_others, taken) == open_to_others


def test_what_only_looks_like_a_schema_stays() -> None:
    literal = {"properties": {"a": 1}, "patternProperties": {"a": 1}, "additionalProperties": False}
    for key in ("const", "default", "examples"):
        schema = {key: [literal] if key == "examples" else literal}
        assert json_schema.without_dead_patterns(schema, grammar._takes) == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)},  # crashes the library
        {"type": "integer", "minimum": -(2**63) + 1, "maximum": -(2**63) + 3},  # the same
        {"const": -(2**63)},  # the same
        {"type": "integer", "minimum": 2**63, "maximum": 2**63 + 5},
        {"type": "integer", "minimum": 2**64},
        {"type": "integer", "exclusiveMaximum": 10**30},
        {"type": "integer", "minimum": 1e30, "maximum": 2e30},
        {"type": "integer", "minimum": 2**53 + 1},
        {"type": "number", "maximum": 2**64 + 1},
        {"minimum": float("inf")},
        {"type": "integer", "maximum": float("nan")},
        {"enum": [1, [{"a": 2**70}]]},
        {"type": "object", "properties": {"enum": {"items": {"const": 2**53 + 1}}}},
        {"anyOf": [{"type": "null"}, {"$defs": {"x": {"exclusiveMinimum": -(2**80)}}}]},
    ],
)
def test_numbers_that_the_library_does_not_keep_are_named(schema: Any) -> None:
    with pytest.raises(UsageError) as error:
        prepared(StructuredOutputsParams(json=schema))
    said = str(error.value)
    assert "which the library, whose numbers are doubles, does not keep" in said
    assert "\n" not in said and len(said) < 250


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
        {"type": "integer", "minimum": 2**62, "maximum": 2**62 + 2**12},
        {"type": "integer", "minimum": 1.5, "maximum": 2.5},
        {"type": "number", "minimum": -0.1, "maximum": 1e5},
        {"type": "object", "properties": {"const": {"default": 2**70}, "minimum": {"title": "x"}}},
        {"const": 0.1},
        {"enum": [2**53, True, None]},
    ],
)
def test_numbers_that_it_keeps_are_taken(schema: Any) -> None:
    prepared(StructuredOutputsParams(json=schema))


def nested(levels: int, kind: str) -> Any:
    schema: Any = {"type": "integer"} if kind != "const" else 1
    for _ in range(levels):
        if kind == "array":
            schema = {"type": "array", "items": schema}
        elif kind == "object":
            schema = {"type": "object", "properties": {"a": schema}}
        else:
            schema = [schema]
    return {"const": schema} if kind == "const" else schema


@pytest.mark.parametrize(("kind", "most"), [("array", 123), ("object", 61), ("const", 123)])
def test_nesting_has_a_bound_that_is_told(kind: str, most: int) -> None:
    prepared(StructuredOutputsParams(json=nested(most, kind)))
    for levels in (most + 1, 300):
        with pytest.raises(UsageError, match=r"json: it is nested more than 123 levels deep$"):
            prepared(StructuredOutputsParams(json=nested(levels, kind)))


def test_every_small_range_is_right() -> None:
    """Of the integers near the bounds of what is taken, all that a text may be and no others."""
    for low, high in itertools.product((-(2**53), 2**53 - 3, -2), (0, 2)):
        schema = {"type": "integer", "minimum": low, "maximum": low + high}
        allowed = {str(value) for value in range(low, low + high + 1)}
        assert {text for text, _ in texts(schema, 24, 40)} <= allowed | {"-0"}
