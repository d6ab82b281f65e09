"""The program in what a model wrote: all of it, or the last fenced block of a chat's answer."""

from __future__ import annotations

import ast
import re

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_OPENED = re.compile(r"^[ \t]*```[^\n`]*\n", re.MULTILINE)


def last_fenced_block(text: str) -> str:
    """The last fenced block; one that was never closed where there is no other, else the text."""
    blocks = _FENCED.findall(text)
    if blocks:
        return str(blocks[-1])
    opened = list(_OPENED.finditer(text))
    return text[opened[-1].end() :] if opened else text


def completion_of(text: str, is_chat: bool, stub: str = "") -> str:
    """What to put behind the prompt's stub to have a program.

    A chat's program that defines functions itself starts on a line of its own: it replaces the
    function that the stub begins, whose docstring alone is a body.
    """
    if not is_chat:
        return text
    block = last_fenced_block(text)
    return "\n" + block if stub and _defines_something(block) else block


def _defines_something(code: str) -> bool:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code.startswith(("def ", "class ", "import ", "from ", "@"))
    return any(isinstance(n, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) for n in body)
