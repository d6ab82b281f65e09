"""`tool_choice` of a chat's request -> how its answer may call functions, and in what form.

Where a call must come, the answer is held to JSON by structured outputs, as vLLM does it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sharegen.common.names import SHOWN
from sharegen.common.tool_choice import ToolChoice
from sharegen.workload.request_body import Refused

_ANY_ARGUMENTS = {"type": "object"}


def tool_choice_of(value: Any, tools: Sequence[Mapping[str, Any]] | None) -> ToolChoice | None:
    """What `tool_choice` says, where these tools are given; None where nothing may be called.

    Raises Refused for what is no choice, or no function that is given.
    """
    if value in (None, "auto", "none"):
        return ToolChoice("auto") if tools and value != "none" else None
    name = _name(value)
    if value != "required" and name is None:
        raise Refused(
            f"tool_choice is {value!r:.{SHOWN}}: it must be none, auto, required, or "
            '{"type": "function", "function": {"name": ...}}',
            "tool_choice",
        )
    if not tools:
        raise Refused("tool_choice: needs tools", "tool_choice")
    if name is None:
        return ToolChoice("required")
    if name not in _parameters(tools):
        raise Refused(f"tool_choice: no tool is named {name!r:.{SHOWN}}", "tool_choice")
    return ToolChoice("named", name)


def schema_of(
    choice: ToolChoice, tools: Sequence[Mapping[str, Any]], parallel: bool
) -> Mapping[str, Any] | None:
    """The JSON schema that an answer is held to. parallel: whether several calls may come."""
    parameters = _parameters(tools)
    if choice.kind == "auto":
        return None
    if choice.kind == "named":
        return parameters[choice.name]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"enum": [name]}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in parameters.items()
    ]
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return schema if parallel else schema | {"maxItems": 1}


def _name(value: Any) -> str | None:
    function = value.get("function") if isinstance(value, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) and value.get("type") == "function" else None


def _parameters(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The schemas of functions' arguments, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function")
        if isinstance(function, Mapping) and isinstance(function.get("name"), str):
            schema = function.get("parameters")
            found[function["name"]] = schema if isinstance(schema, Mapping) else _ANY_ARGUMENTS
    return found
