"""A conversation that a row brings: turns of role and content, as chat datasets hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sharegen.workload.template import RenderError, half_character

COLUMN = "messages"
"""Where a row has its conversation if it lacks the field that the template asks for."""


def conversation(field: str, turns: Sequence[Any]) -> list[dict[str, str]]:
    """The turns of a field; what is null in them is left out.

    Raises RenderError that names the field and the turn which is none.
    """
    if not turns:
        raise RenderError(f"the field {field!r} is an empty list: a conversation has turns")
    return [_turn(f"{field}[{place}]", turn) for place, turn in enumerate(turns)]


def _turn(name: str, turn: Any) -> dict[str, str]:
    if not isinstance(turn, dict) or not {"role", "content"} <= turn.keys():
        raise RenderError(
            f"{name} is of type {type(turn).__name__} and no turn of a conversation, which has a "
            "'role' and a 'content'"
        )
    told = {key: value for key, value in turn.items() if value is not None or key == "content"}
    for key, value in told.items():
        if not isinstance(value, str):
            raise RenderError(f"{name}.{key} is of type {type(value).__name__}: a turn holds text")
        if half_character(value) is not None:
            raise RenderError(f"{name}.{key} is no text: it holds half of a character")
    return told
