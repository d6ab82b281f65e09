"""Rows of CSV and TSV. Every cell is text, as it stands there; an empty cell is an empty text.

Nothing is taken for a number, a date or a missing value: `007`, `NA` and `1e5` are what they are.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence

from sharegen.errors import DataError
from sharegen.workload.files.content import NULS, FileContent
from sharegen.workload.files.lines import Found

_LONE_RETURN = "\ud800"
r"""What stands for a \r within a line while csv reads it, which would end the row there: a half of
a character, which no text in UTF-8 has."""

_MANY_NULS = 8
"""NULs in a line of a sparse file, or of one in two encodings; a cell may hold a few."""


def read_csv(content: FileContent) -> Iterator[tuple[str, Found]]:
    return read_table(content, ",")


def read_tsv(content: FileContent) -> Iterator[tuple[str, Found]]:
    return read_table(content, "\t")


def read_table(content: FileContent, delimiter: str) -> Iterator[tuple[str, Found]]:
    """The rows by the names in the first line; where is the line that a row begins in.

    Raises DataError where the names cannot be read or two are equal, and where a quote is opened
    and not closed: no row after it can be recognised.
    """
    csv.field_size_limit(sys.maxsize)
    lines = _Lines(content)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    names: Sequence[str] | None = None
    for where, cells in _records(reader, lines, content):
        if names is None:
            names = _names(f"{content.path}, {where}", cells)
        elif isinstance(cells, str):
            yield where, cells
        elif len(cells) != len(names):
            yield where, f"has {_counted(len(cells))}, and the first line names {len(names)}"
        else:
            yield where, dict(zip(names, cells, strict=True))


class _Lines:
    """The lines that csv is given; number: of the latest."""

    def __init__(self, content: FileContent) -> None:
        self._lines = content.ended_lines()
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        # What is no UTF-8 becomes halves of characters, too, which `_cells` finds.
        text = line.decode(errors="surrogateescape")
        if "\r" not in text:
            return text
        end = next((end for end in ("\r\n", "\n", "\r") if text.endswith(end)), "")
        return text.removesuffix(end).replace("\r", _LONE_RETURN) + end


def _records(
    reader: Iterator[list[str]], lines: _Lines, content: FileContent
) -> Iterator[tuple[str, list[str] | str]]:
    """Where a record stands, and its cells or its fault; lines without anything are none."""
    while True:
        first = lines.number + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise DataError(
                    f"{content.path}, line {first}: a cell begins with a quote that is not closed "
                    'up to the end of the file: close it, or write it as """"'
                ) from None
            yield _place(first, lines.number), _MISQUOTED
            continue
        if cells:
            yield _place(first, lines.number), _cells(cells)


def _place(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


_MISQUOTED = "a cell goes on after its closing quote: a quote within a quoted cell is written twice"


def _cells(cells: list[str]) -> list[str] | str:
    """The cells of a row as they were before `_Lines`, or why they cannot be read."""
    if any("\0" in cell for cell in cells) and _is_broken(",".join(cells)):
        return NULS
    whole = [cell.replace(_LONE_RETURN, "\r") for cell in cells]
    for place, cell in enumerate(whole, start=1):
        try:
            cell.encode()
        except UnicodeEncodeError as error:
            byte = ord(cell[error.start]) & 0xFF
            return f"is not UTF-8 text in cell {place} (the byte {byte:#04x}): save it as UTF-8"
    return whole


def _is_broken(text: str) -> bool:
    """Whether the NULs of a line are no characters: every second one is of UTF-16."""
    count = text.count("\0")
    is_utf16 = count > 2 and count in (text[::2].count("\0"), text[1::2].count("\0"))
    return count >= _MANY_NULS or (is_utf16 and count >= len(text) // 2)


def _names(where: str, cells: list[str] | str) -> list[str]:
    """The columns' names; one without a name goes by its place."""
    if isinstance(cells, str):
        raise DataError(f"{where}: {cells}")
    names = [name or f"column {place}" for place, name in enumerate(cells, start=1)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{where}: two columns are called {twice!r:.80}: rename one")
    return names


def _counted(cells: int) -> str:
    return "1 cell" if cells == 1 else f"{cells} cells"
