"""The program in what a model wrote: all of it, or the last fenced block of a chat's answer."""

from __future__ import annotations

import ast
import re

from sharegen.common.python_source import parsed

_OPENS = re.compile(r"[ \t]*```[^`]*")
_CLOSES = re.compile(r"[ \t]*```[ \t]*")


def last_fenced_block(text: str) -> str:
    """The last fenced block; one that was never closed where there is no other, else the text."""
    lines = text.split("\n")
    block: tuple[int, int] | None = None
    opened: int | None = None  # the line under the fence of the block that is open
    last_opened = 0
    for number, line in enumerate(lines):
        if "```" not in line:
            continue
        if opened is not None and _CLOSES.fullmatch(line):
            block, opened = (opened, number), None
        elif _OPENS.fullmatch(line) and number + 1 < len(lines):
            last_opened = number + 1
            opened = last_opened if opened is None else opened
    if block is None:
        return "\n".join(lines[last_opened:])
    return "".join(f"{line}\n" for line in lines[slice(*block)])


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
    tree = parsed(code)
    if tree is None:
        return code.startswith(("def ", "class ", "import ", "from ", "@"))
    defines = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    return any(isinstance(node, defines) for node in tree.body)
