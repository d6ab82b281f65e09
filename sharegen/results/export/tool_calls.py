"""Calls of functions in a model's text, as OpenAI's messages have them.

A model that may call writes `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` among its
text, as the chat templates of Qwen, Hermes and those that follow them ask. One that must call was
held to JSON. What is no such call stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.common.tool_choice import ToolChoice

OPEN = "<tool_call>"
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A call. arguments: the JSON text of an object."""

    name: str
    arguments: str


def calls_in(text: str, choice: ToolChoice) -> tuple[str | None, list[Call]]:
    """The text of an answer that is left beside its calls, None where none is; and the calls."""
    if choice.kind == "named":
        return None, [Call(choice.name, text)]
    if choice.kind == "required":
        found = _parsed(text)
        calls = [_call(each) for each in found] if isinstance(found, list) else []
    else:
        calls = [_call(_parsed(match[1])) for match in _CALL.finditer(text)]
    known = [call for call in calls if call is not None]
    if not known or len(known) < len(calls):  # cut off in one, or not of this form
        return text, []
    return (text[: text.index(OPEN)].strip() if OPEN in text else "") or None, known


def message_calls(calls: Sequence[Call], name: str) -> list[dict[str, Any]]:
    """The list `tool_calls` of a message. name: its own among all, of which ids are made."""
    return [
        {
            "id": f"call_{name}{number}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(calls)
    ]


def ends_as(reason: str, choice: ToolChoice, calls: Sequence[Call]) -> str:
    """The finish reason of an answer; that of a named function's call stays, as at OpenAI."""
    return "tool_calls" if calls and reason == "stop" and choice.kind != "named" else reason


def _parsed(text: str) -> Any:
    try:
        return json_values.parse(text)
    except JsonError:
        return None


def _call(value: Any) -> Call | None:
    """A call as a model writes it; its arguments may be JSON within a text."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, str):
        return Call(value["name"], json.dumps(arguments, ensure_ascii=False))
    return Call(value["name"], arguments) if isinstance(_parsed(arguments), dict) else None
