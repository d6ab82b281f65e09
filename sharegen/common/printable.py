"""Text of models, datasets and file names as a terminal may show it.

A terminal obeys what control characters tell it, and Rich obeys what stands in brackets.
"""

from __future__ import annotations

import re

_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters; a terminal obeys them
    r"\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"  # line ends; what turns text around
    r"\ud800-\udfff]"  # halves of surrogate pairs, which have no bytes
)


def printable(text: str) -> str:
    """The text with its hidden characters spelled, tabs and line ends excepted."""
    return _HIDDEN.sub(lambda match: repr(match[0])[1:-1], text)


_MARKUP = re.compile(r"\\+|\[|:")
_NOTHING = "[none][/none]"


def visible(text: str) -> str:
    """Return the same inside Rich's markup, where none of it is markup.

    Rich's own `escape` leaves emoji codes, and backslashes before a bracket or at the end.
    """
    return _MARKUP.sub(_escaped, printable(text))


def _escaped(match: re.Match[str]) -> str:
    if match[0] == "[":
        return "\\["
    if match[0] == ":":  # no emoji's name goes on behind a tag
        return ":" + _NOTHING
    return 2 * match[0] + _NOTHING


_IN_ASCII = str.maketrans(
    {"·": "-", "…": "...", "–": "-", "─": "-", "━": "=", "╸": "=", "╺": "-", "│": "|", "├": "+",
     "└": "+", "█": "#", "░": ".", "✓": "+", "✗": "x", "→": "->", "µ": "u"}
    | dict.fromkeys("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "*")
)  # fmt: skip


def has_signs(encoding: str | None) -> bool:
    """Whether a screen of that encoding has the signs by which lines are set apart and drawn."""
    try:
        "·…└█✓".encode(encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def in_ascii(text: str) -> str:
    """The text with ASCII in place of such signs; what else is beyond ASCII stays."""
    return text.translate(_IN_ASCII)
