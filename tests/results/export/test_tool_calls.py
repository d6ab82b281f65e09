"""Calls of functions in what a model writes."""

from __future__ import annotations

import json

import pytest

from sharegen.common.tool_choice import ToolChoice
from sharegen.results.export.tool_calls import Call, calls_in, ends_as, message_calls

AUTO, REQUIRED = ToolChoice("auto"), ToolChoice("required")
ADD = '{"name": "add", "arguments": {"a": 1, "b": "\u00e9"}}'
CALL = Call("add", '{"a": 1, "b": "\u00e9"}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{ADD}\n</tool_call>", None, [CALL]),
        (f"Let me see.\n<tool_call>{ADD}</tool_call>", "Let me see.", [CALL]),
        (f"<tool_call>{ADD}</tool_call>\n<tool_call>{ADD}</tool_call>", None, [CALL, CALL]),
        (f"<tool_call>{ADD}", None, [CALL]),  # the end of the text ends a call, too
        ('<tool_call>{"name": "now"}</tool_call>', None, [Call("now", "{}")]),
        ('<tool_call>{"name": "a", "parameters": {"x": []}}</tool_call>', None,
         [Call("a", '{"x": []}')]),
        ('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', None,
         [Call("a", '{"x": 1}')]),
    ],
)  # fmt: skip
def test_calls_among_text(text: str, content: str | None, calls: list[Call]) -> None:
    assert calls_in(text, AUTO) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "4", "", f"{ADD}", "<tool_call>", "<tool_call></tool_call>", "<tool_call>[]</tool_call>",
        '<tool_call>{"name": 1, "arguments": {}}</tool_call>', f"<tool_call>{ADD[:-3]}",
        '<tool_call>{"name": "a", "arguments": "x"}</tool_call>',
        f"<tool_call>{ADD}</tool_call><tool_call>{{",  # half of what was meant is not said
    ],
)  # fmt: skip
def test_what_is_no_call_stays_text(text: str) -> None:
    assert calls_in(text, AUTO) == (text, [])


def test_calls_that_had_to_come() -> None:
    assert calls_in(f"[{ADD}, {ADD}]", REQUIRED) == (None, [CALL, CALL])
    assert calls_in(f"[{ADD}", REQUIRED) == (f"[{ADD}", [])  # cut off
    named = ToolChoice("named", "add")
    assert calls_in('{"a": 1', named) == (None, [Call("add", '{"a": 1')])
    assert ends_as("stop", REQUIRED, [CALL]) == ends_as("stop", AUTO, [CALL]) == "tool_calls"
    assert ends_as("stop", named, [CALL]) == ends_as("stop", AUTO, []) == "stop"
    assert ends_as("length", named, [CALL]) == "length"


def test_the_list_of_a_message() -> None:
    first, second = message_calls([CALL, CALL], "x1_")
    assert (first["id"], second["id"], first["type"]) == ("call_x1_0", "call_x1_1", "function")
    assert first["function"]["name"] == "add"
    assert json.loads(first["function"]["arguments"]) == {"a": 1, "b": "\u00e9"}
