"""The blocks of code in a text with Markdown in it, as chat models write it.

Fences are read as CommonMark reads them: three or more backticks or tildes, closed by as many of
the same, and as far in as their list or quotation is. There are two liberties, for models are no
careful writers. A fence inside a string of the program (a docstring with an example) closes
nothing. A fence with a language opens a block even where the one before was left open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_OPENS = re.compile(r"([ \t>]*(?:(?:[-*+]|[0-9]{1,3}[.)])[ \t]+)?)(`{3,}(?=[^`]*$)|~{3,})(.*)")
_CLOSES = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*")
_LANGUAGE = re.compile(r"[a-z][a-z0-9+#]*")
_PYTHON = re.compile(r"i?python[0-9]*|py[0-9]*|sage")
_TRIPLE = ('"""', "'''")
_PIECES = re.compile(r"""'{3}|"{3}|#.*|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?""")
_ESCAPED_OR_TRIPLE = re.compile(r"""\\.|'{3}|"{3}""")
_PATIENCE = 16
"""Strings of one text that may turn out to have no end."""


@dataclass(frozen=True)
class Block:
    """One block of code.

    language: the first word behind its fence, in lower case; empty where there is none.
    is_closed: False of the last one of a text that was cut.
    """

    language: str
    text: str
    is_closed: bool = True


@dataclass(frozen=True)
class _Fence:
    """A line that opens a block. indent: characters before it, which its lines may have too."""

    mark: str
    language: str
    indent: int


def is_python(language: str) -> bool:
    """Whether the word behind a fence says that this is a program in Python."""
    return _PYTHON.fullmatch(language) is not None


def blocks_of(text: str) -> Iterator[Block]:
    """The blocks in their order. It takes time in proportion to the text, whatever is in it."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    patience = _PATIENCE
    start = 0
    while start < len(lines):
        fence = _opened(lines[start])
        start += 1
        if fence is None:
            continue
        minds_strings = patience > 0 and (not fence.language or is_python(fence.language))
        end = _end_of(lines, start, fence, minds_strings)
        if end is None and minds_strings:  # a string without an end may have taken all
            patience -= 1
            end = _end_of(lines, start, fence, minds_strings=False)
        body = "\n".join(_without(line, fence.indent) for line in lines[start:end])
        if end is None:
            if start < len(lines):
                yield Block(fence.language, body, is_closed=False)
            return
        yield Block(fence.language, body + "\n" if end > start else "")
        start = end + (_CLOSES.fullmatch(lines[end]) is not None)


def _opened(line: str) -> _Fence | None:
    if "```" not in line and "~~~" not in line:
        return None
    found = _OPENS.fullmatch(line)
    if found is None:
        return None
    before, mark, info = found.groups()
    language = _LANGUAGE.search(info.lower())
    return _Fence(mark, language[0] if language else "", len(before))


def _end_of(lines: Sequence[str], start: int, fence: _Fence, minds_strings: bool) -> int | None:
    """The line that ends a block: a fence that closes it, or opens another; None at the end."""
    string = ""  # the quotes that the program's string began with which goes on
    for number in range(start, len(lines)):
        line = lines[number]
        if not string and ("```" in line or "~~~" in line):
            closes = _CLOSES.fullmatch(line)
            if closes is not None and closes[1].startswith(fence.mark):
                return number
            another = None if closes is not None else _opened(line)
            if another is not None and another.mark == fence.mark and another.language:
                return number
        if minds_strings and (string or '"""' in line or "'''" in line):
            string = _string_after(line, string)
    return None


def _string_after(line: str, string: str) -> str:
    """The quotes of the string that goes on behind a line of Python; string: before it."""
    place = 0
    while True:
        pieces = (_ESCAPED_OR_TRIPLE if string else _PIECES).finditer(line, place)
        wanted = (string,) if string else _TRIPLE
        found = next((piece for piece in pieces if piece[0] in wanted), None)
        if found is None:
            return string
        string, place = "" if string else found[0], found.end()


def _without(line: str, indent: int) -> str:
    """A line without what stands before its block, as far as it has that."""
    place = 0
    while place < min(indent, len(line)) and line[place] in " \t>":
        place += 1
    return line[place:]
