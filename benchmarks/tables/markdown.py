"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that are empty in all rows are left out."""
    kept = [index for index, name in enumerate(header) if any(row[index] for row in rows)]
    lines = [[header[index] for index in kept], ["---"] * len(kept)]
    lines += [[row[index].replace("|", "\\|") for index in kept] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
