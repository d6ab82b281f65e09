"""Conversations: turns of role and content as chat datasets hold them, and what goes with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.workload.template import RenderError, half_character

COLUMN = "messages"
"""Where a row has its conversation if it lacks the field that the template asks for."""

TOOLS, KWARGS = "tools", "chat_template_kwargs"
"""Columns of what a row with a conversation may bring beside it."""

Turn = dict[str, Any]


@dataclass(frozen=True)
class ChatOptions:
    """What a chat template is given beside the turns.

    tools: schemas of functions that the model may call. template_kwargs: variables of the
        template's own, such as `enable_thinking`.
    add_generation_prompt: whether the answer begins a turn of its own. None: it does, and a
        conversation that ends with the assistant is refused.
    continue_final_message: whether the answer goes on within the last turn.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @property
    def begins_turn(self) -> bool:
        """Whether the template is to open the turn of the answer."""
        return self.add_generation_prompt is not False and not self.continue_final_message

    def check(self, turns: Sequence[Mapping[str, Any]]) -> None:
        """Raise RenderError where it is not said how to go on from the last turn."""
        is_told = self.continue_final_message or self.add_generation_prompt is not None
        if not is_told and turns[-1]["role"] == "assistant":
            raise RenderError(
                "the conversation ends with a turn of the assistant: leave that turn out, or say "
                "continue_final_message: true to go on within it, or add_generation_prompt: true "
                "for one more turn after it"
            )


PLAIN = ChatOptions()
"""Turns alone, and an answer after them."""


def conversation(name: str, turns: Any) -> list[Turn]:
    """The turns of a field; what is null or an empty list in them is left out.

    Raises RenderError that names the field and the turn which is none.
    """
    if not isinstance(turns, list):
        raise RenderError(f"{name} is of type {type(turns).__name__}: a conversation is a list")
    if not turns:
        raise RenderError(f"the field {name!r} is an empty list: a conversation has turns")
    return [_turn(f"{name}[{place}]", turn) for place, turn in enumerate(turns)]


_READ_HERE = ("content", "tool_calls", "function_call", "refusal", "annotations", "weight")
"""What a template gets in another form, and what OpenAI's turns hold that asks nothing."""


def _turn(name: str, turn: Any) -> Turn:
    """One turn as templates know it: a text of content, and calls of tools."""
    if not isinstance(turn, dict) or "role" not in turn or not _says_something(turn):
        raise RenderError(
            f"{name} is of type {type(turn).__name__} and no turn of a conversation, which has a "
            "'role' and a 'content'"
        )
    if not isinstance(turn["role"], str):
        raise RenderError(f"{name}.role is of type {type(turn['role']).__name__}: it is a text")
    calls = turn.get("tool_calls") or _former_calls(turn.get("function_call"))
    cleaned: Turn = {}
    for key, value in turn.items():
        if key == "content" and not (calls and value is None):
            cleaned[key] = _content(f"{name}.content", value, turn)
        elif key not in _READ_HERE and value not in (None, [], {}):
            cleaned[key] = _value(f"{name}.{key}", value)
    if calls:
        cleaned["tool_calls"] = _tool_calls(f"{name}.tool_calls", calls)
    elif "content" not in cleaned:
        cleaned["content"] = _content(f"{name}.content", None, turn)
    if cleaned["role"] == "function":  # which answers a `function_call`
        cleaned["role"] = "tool"
    return cleaned


def _says_something(turn: Mapping[str, Any]) -> bool:
    """Whether it has a content, or is the assistant's, who may say nothing, without any other."""
    others = turn.keys() - {"role", "name", "audio", *_READ_HERE}
    calls = turn.get("tool_calls") or turn.get("function_call")
    return "content" in turn or bool(calls) or (turn["role"] == "assistant" and not others)


def _content(name: str, value: Any, turn: Mapping[str, Any]) -> str:
    """A content as text. An assistant's that is null is its refusal, or nothing said."""
    if value is None and turn["role"] == "assistant":
        value = turn.get("refusal") or ""
    if isinstance(value, list):
        value = _joined(name, value)
    if not isinstance(value, str):
        raise RenderError(f"{name} is of type {type(value).__name__}: a turn holds text")
    return _value(name, value)


def _value(name: str, value: Any) -> Any:
    """What else a template may read: any JSON."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise RenderError(f"{name} is of type {type(value).__name__}: that is no JSON") from None
    if half_character(text) is not None:
        raise RenderError(f"{name} is not text: it holds half of a character")
    return value


_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of a content's parts that are text, and where a part has it."""


def _joined(name: str, parts: list[Any]) -> str:
    """The texts of a content that is given in parts, a line each."""
    texts = []
    for place, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        place_of_text = _TEXTS.get(kind) if isinstance(kind, str) else None
        text = part.get(place_of_text) if isinstance(part, dict) and place_of_text else None
        if not isinstance(text, str):
            raise RenderError(
                f"{name}[{place}] is of type {kind}: only parts of type text are read"
            )
        texts.append(text)
    return "\n".join(texts)


def _former_calls(call: Any) -> list[Any] | None:
    """Return `function_call`, which was there before calls of tools were, as a list of these."""
    return [{"type": "function", "function": call}] if call else None


def _tool_calls(name: str, calls: Any) -> list[dict[str, Any]]:
    """Calls of functions, with their arguments as the mapping that chat templates write out."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RenderError(f"{name} is of type {type(calls).__name__} and no list of calls")
    return [
        {**_without_nulls(call), "function": _function(name, call.get("function"))}
        for call in calls
    ]


def _function(name: str, function: Any) -> dict[str, Any]:
    """A called function. Arguments that are no JSON, as a model wrote them, stay the text."""
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RenderError(f"{name}: a call has a 'function' with a 'name' and its 'arguments'")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            parsed = json_values.parse(arguments)
        except JsonError:
            parsed = arguments
        arguments = parsed if isinstance(parsed, dict) else arguments
    return {**_without_nulls(function), "arguments": arguments}


def tools_of(name: str, value: Any) -> list[dict[str, Any]] | None:
    """Schemas of functions, from a list or the JSON text of one; None where there are none."""
    value = _parsed(name, value)
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise RenderError(f"{name} is not a list of schemas of functions")
    return [_tool(tool) for tool in value]


def _parsed(name: str, value: Any) -> Any:
    """What a text holds as JSON; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return json_values.parse(value)
    except JsonError as error:
        raise RenderError(f"{name} is not JSON: {error}") from None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool without nulls, which are keys of other tools' schemas that Arrow wrote into it.

    As values of their own they stand where a schema may have any value.
    """
    return {
        name: value if name in _ANY_VALUE else _without_null_keys(value)
        for name, value in tool.items()
        if value is not None or name in _ANY_VALUE
    }


def _without_null_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_null_keys(part) for part in value]
    return _tool(value) if isinstance(value, dict) else value


_ANY_VALUE = ("default", "const", "enum", "examples")


def _without_nulls(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: found for name, found in value.items() if found is not None}


def kwargs_of(name: str, value: Any) -> dict[str, Any]:
    """Variables of a chat template. Raises RenderError for what is no mapping of names."""
    value = _parsed(name, value)
    if not isinstance(value, dict):
        raise RenderError(f"{name} is of type {type(value).__name__}: it maps names to values")
    taken = reserved(value)
    if taken is not None:
        raise RenderError(f"{name}: {taken!r} cannot be the name of a template variable")
    return value


_RESERVED = frozenset({
    "self", "conversation", "messages", "tools", "documents", "chat_template", "tokenize",
    "add_generation_prompt", "continue_final_message", "sanitize_control_tokens", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
    "tokenizer_kwargs", "strftime_now",
})  # fmt: skip
"""What transformers' `apply_chat_template` takes by name for itself."""


def reserved(kwargs: Mapping[str, Any]) -> str | None:
    """The first name that no variable of a template can have."""
    return next((name for name in kwargs if name in _RESERVED), None)
