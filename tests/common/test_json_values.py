"""JSON from outside: what is too much of it is an error in words, whatever Python's own limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharegen.common.json_values import MAX_DEPTH, JsonError, JsonLimitError, elements, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner) |
    st.dictionaries(st.text(), inner), max_leaves=20,
)  # fmt: skip


def nested(depth: int, kind: str = "list") -> str:
    return "[" * depth + "]" * depth if kind == "list" else '{"a":' * depth + "1" + "}" * depth


@given(VALUES)
def test_what_is_within_bounds_is_the_value(value: Any) -> None:
    assert parse(json.dumps(value)) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize("kind", ["list", "object"])
def test_depth_is_bounded_where_nothing_else_breaks(kind: str) -> None:
    json.dumps(parse(nested(MAX_DEPTH, kind)))
    for depth in (MAX_DEPTH + 1, 900, 100_000):
        with pytest.raises(JsonLimitError, match="nested too deeply"):
            parse(nested(depth, kind))
    assert len(parse(f"[{','.join(['[]'] * 1000)}]")) == 1000  # many, but side by side


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1" * 5_000, "too many digits"),
        (b'"\xff"', "not UTF-8 text at byte 1"),
        ("{nope}", "Expecting property name"),
        ("", "Expecting value"),
    ],
)
def test_what_is_no_value_says_why(text: str | bytes, reason: str) -> None:
    with pytest.raises(JsonError, match=reason):
        parse(text)


@given(st.lists(VALUES, min_size=1))
@pytest.mark.slow
def test_elements_are_those_of_the_list(values: list[Any]) -> None:
    assert [json.loads(text) for text in elements(f" {json.dumps(values)} ")] == values


def test_elements_are_told_apart_beside_one_that_is_too_deep() -> None:
    deep = nested(5_000, "object")
    assert list(elements(f'["],\\"", {deep}, 2]')) == ['"],\\""', f" {deep}", " 2"]
