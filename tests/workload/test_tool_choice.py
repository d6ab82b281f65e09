"""What `tool_choice` asks for, and the form of an answer that has to be a call."""

from __future__ import annotations

from typing import Any

import pytest

from sharegen.common.tool_choice import ToolChoice
from sharegen.workload.request_body import Refused
from sharegen.workload.tool_choice import schema_of, tool_choice_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]


def named(name: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_what_is_chosen() -> None:
    for value in (None, "auto"):
        assert tool_choice_of(value, TOOLS) == ToolChoice("auto")
        assert tool_choice_of(value, None) is None
    assert tool_choice_of("none", TOOLS) is None
    assert tool_choice_of("required", TOOLS) == ToolChoice("required")
    assert tool_choice_of(named("now"), TOOLS) == ToolChoice("named", "now")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("required", "needs tools"), (named("add"), "needs tools"), ("any", "is 'any'"),
        (3, "is 3"), ({}, "is {}"), (named(3), "must be none, auto"), 
        ({"function": {"name": "add"}}, "must be"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen(value: Any, said: str) -> None:
    with pytest.raises(Refused, match="tool_choice") as caught:
        tool_choice_of(value, [])
    assert said in str(caught.value)
    with pytest.raises(Refused, match="no tool is named 'other'"):
        tool_choice_of(named("other"), TOOLS)


def test_the_form_of_an_answer() -> None:
    assert schema_of(ToolChoice("auto"), TOOLS, True) is None
    assert schema_of(ToolChoice("named", "add"), TOOLS, True) == SCHEMA
    assert schema_of(ToolChoice("named", "now"), TOOLS, True) == {"type": "object"}
    several = schema_of(ToolChoice("required"), TOOLS, True)
    one = schema_of(ToolChoice("required"), TOOLS, False)
    assert several is not None and one == {**several, "maxItems": 1}
    names = [call["properties"]["name"]["enum"] for call in several["items"]["anyOf"]]
    assert names == [["add"], ["now"]]
