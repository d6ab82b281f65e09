"""Tables in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sharegen.errors import DataError

END = "<!-- end of table -->"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that are empty in all rows are left out."""
    kept = [index for index, name in enumerate(header) if any(row[index] for row in rows)]
    lines = [[header[index] for index in kept], ["---"] * len(kept)]
    lines += [[row[index].replace("|", "\\|") for index in kept] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def begin(name: str) -> str:
    """The line of a page behind which a table stands, up to `END`."""
    return f"<!-- table: {name} -->"


def with_table(page: str, name: str, made: str, file: str) -> str:
    """A page with one of its tables as it is today. Raises DataError where it has no place."""
    place = re.compile(f"({re.escape(begin(name))}\n).*?({re.escape(END)})", re.DOTALL)
    if not place.search(page):
        raise DataError(
            f"{file}: it has no lines `{begin(name)}` and `{END}`: put them where the table belongs"
        )
    return place.sub(lambda found: f"{found[1]}\n{made}\n\n{found[2]}", page, count=1)
