"""What may be said of structured outputs, in vLLM's words and in OpenAI's, and what is refused."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

from sharegen.common.grammar import prepared
from sharegen.common.structured import StructuredOutputsParams, from_response_format
from sharegen.errors import UsageError

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}


def test_one_kind_is_given_and_keeps_its_order() -> None:
    params = StructuredOutputsParams(json=SCHEMA)
    assert params.kind == "json" and params == StructuredOutputsParams(json=params.json)
    other = {"type": "object", "properties": dict(reversed(SCHEMA["properties"].items()))}  # type: ignore[attr-defined]
    assert params != StructuredOutputsParams(json=other)
    assert StructuredOutputsParams(choice=["a", "b"]) == StructuredOutputsParams(choice=("a", "b"))
    assert pickle.loads(pickle.dumps(params)) == params
    for each in (params, StructuredOutputsParams(choice=["a"], disable_any_whitespace=True)):
        assert StructuredOutputsParams.of(each.as_dict()) == each
        assert StructuredOutputsParams.of(each) is each
    assert StructuredOutputsParams.of(None) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "says nothing: give one of json, regex, choice, grammar, json_object"),
        ({"json_object": False}, "says nothing"),
        ({"regex": "a", "choice": ["b"]}, "has regex and choice: give one"),
        ({"regex": ""}, "regex is '': it must be a text, not empty"),
        ({"grammar": 5}, "grammar is 5"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": [1]}, "a JSON schema is a mapping"),
        ({"json": {"enum": [{1}]}}, "json is not JSON"),
        ({"json_object": 1}, "json_object is 1"),
        ({"choice": []}, "choice is []: it must be a list of texts, not empty"),
        ({"choice": "ab"}, "choice is 'ab'"),
        ({"choice": ["\ud800"]}, "choice is not text: surrogates not allowed"),
        ({"json_object": True, "disable_any_whitespace": "no"}, "must be true or false"),
        ({"jsn": {}}, "has no 'jsn': give one of json"),
        ("json", "is 'json': give a mapping"),
    ],
)  # fmt: skip
def test_what_is_no_kind_is_refused(values: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        StructuredOutputsParams.of(values)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "values",
    [
        {"json": SCHEMA},
        {"json_object": True, "disable_any_whitespace": True},
        {"regex": r"^\d{3}-\w+$"},
        {"choice": ["a b", 'q"uo\\te', "日本🙂", "\x7f\n", ""]},
        {"grammar": 'start: "(" start ")" | NAME\nNAME: /[a-z]{1,9}/'},
        {"grammar": 'root ::= "a" | "b" digits\ndigits ::= [0-9]+'},
    ],
)
def test_what_has_a_text_is_taken(values: Any) -> None:
    prepared(StructuredOutputsParams(**values))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        # No text is of these.
        ({"json": {"enum": []}}, "json: Unsatisfiable schema: anyOf is empty"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum (5) is greater"),
        ({"json": {"$ref": "#"}}, "json: no text satisfies it"),
        ({"regex": "[^\\x00-\\U0010FFFF]"}, "regex: no text satisfies it"),
        ({"grammar": 'start: x\nx: x "a"'}, "grammar: no text satisfies it"),
        # These have no end, or no bound.
        ({"grammar": 'start: "a" start'}, "Too many items"),
        ({"regex": "((a{1,1000}){1,1000}){1,1000}"}, "too many expressions"),
        ({"regex": "(a|aa)*b{1000000}"}, "too many expressions"),
        # These do not parse, or say what the library does not know.
        ({"regex": "(a"}, "regex: unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"grammar": 'start: "a" b'}, 'unknown name: "b"'),
        ({"grammar": 'root ::= "a'}, "Unexpected end of input"),
        ({"grammar": "hello"}, "Expected ::="),
        ({"json": {"type": "strang"}}, "Invalid type: strang"),
        ({"json": {"not": {"type": "string"}}}, 'Unimplemented keys: ["not"]'),
        ({"json": {"$ref": "#/$defs/x"}}, "does not exist"),
        ({"json": {"$ref": "http://example.invalid/x"}}, "not present in a registry"),
    ],
)
def test_what_has_none_is_refused_in_one_line(values: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        prepared(StructuredOutputsParams(**values))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_response_format_is_another_spelling() -> None:
    assert from_response_format(None) is None
    assert from_response_format({"type": "text"}) is None
    any_object = from_response_format({"type": "json_object"})
    assert any_object == StructuredOutputsParams(json_object=True)
    inner = {"name": "x", "strict": True, "description": "y", "schema": SCHEMA}
    asked = from_response_format({"type": "json_schema", "json_schema": inner})
    assert asked == StructuredOutputsParams(json=SCHEMA)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("json_object", "its type is one of text, json_object, json_schema"),
        ({"type": "xml"}, "its type is one of"),
        ({"type": ["text"]}, "its type is one of"),
        ({"type": "text", "schema": {}}, "response_format has no field 'schema'"),
        ({"type": "json_schema"}, "json_schema is None: it needs a name and a schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "it needs a name and a schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "name is missing"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strickt": True}},
            "response_format.json_schema has no field 'strickt'",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": {}, "strict": "y"}},
            "strict is 'y'",
        ),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}, "is a mapping"),
    ],
)
def test_what_is_no_response_format_is_refused(value: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        from_response_format(value)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_without_the_library_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"^structured_outputs need .* install 'llguidance[<>=]"):
        prepared(StructuredOutputsParams(regex="not looked at before"))
