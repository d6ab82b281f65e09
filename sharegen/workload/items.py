"""Dataset rows -> items: what templates see of a row, under the names that the recipe gives.

A row that its schema cannot read becomes a BadRow. Few-shot examples (few_shot.py) are items, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sharegen.common.names import listed
from sharegen.errors import DataError
from sharegen.workload.dataset import DatasetRows, Row, read_rows
from sharegen.workload.files.content import read_text
from sharegen.workload.needle import needle_rows
from sharegen.workload.sections import Dataset


@dataclass(frozen=True)
class Item:
    """A row after its schema was applied: what templates see."""

    id: str
    row: Row
    fields: dict[str, Any]


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be asked, and why in one line; is_request: of a batch file."""

    id: str
    error: str
    is_request: bool = False

    @property
    def message(self) -> str:
        """The error, and what becomes of the row."""
        if self.is_request:
            return f"{self.error} (the request is not asked: this error is its answer)"
        return f"{self.error} (the row is left out)"


def read_split(dataset: Dataset, split: str) -> DatasetRows:
    """The rows of one split, written by the recipe's needles or read from its source."""
    if dataset.needles is not None:
        return needle_rows(dataset.needles, split)
    assert dataset.source is not None
    return read_rows(dataset.source, dataset.config, split, dataset.revision)


def name_of(dataset: Dataset) -> str:
    """What messages call it."""
    return dataset.source or "needles"


def items_of(
    rows: Sequence[Row], dataset: Dataset, where: Mapping[str, Any], limit: int | None
) -> tuple[list[Item], list[BadRow]]:
    """The rows that `where` keeps, up to `limit` of them, with their fields named."""
    adapt = None
    if dataset.rows is not None:
        from sharegen.workload.code import adapter

        adapt = adapter(dataset.rows)
    document = read_text(Path(dataset.document)) if dataset.document is not None else None
    items: list[Item] = []
    bad: list[BadRow] = []
    for name, row in zip(problem_ids(rows, dataset), rows, strict=True):
        if limit is not None and len(items) + len(bad) >= limit:
            break
        try:
            if row.fault is not None:
                raise DataError(row.fault)
            values = adapt(row.values) if adapt else row.values
        except DataError as error:
            bad.append(BadRow(name, f"{row.where}: {error}"))
            continue
        fields = {name: value for name, value in values.items() if value is not None}
        for field, columns in dataset.fields.items():
            column = next((c for c in columns if c in fields), None)
            if column is not None:
                fields[field] = fields[column]
        if document is not None:
            fields["document"] = document
        if all(str(fields.get(field)) == str(value) for field, value in where.items()):
            items.append(Item(name, row, fields))
    return items, bad


def problem_ids(rows: Sequence[Row], dataset: Dataset) -> list[str]:
    """What the journal calls the problem of each row: its id, or else its index.

    A row without an id does not take that of another, whose id is a number too.
    """

    def own(row: Row) -> str | None:
        column = next((c for c in dataset.id if row.values.get(c) not in (None, "")), None)
        return None if column is None else str(row.values[column])

    given = [own(row) for row in rows]
    taken = set(given)

    def by_index(row: Row) -> str:
        return f"row {row.index}" if str(row.index) in taken else str(row.index)

    return [by_index(row) if name is None else name for name, row in zip(given, rows, strict=True)]


def refuse_missing_columns(rows: Sequence[Row], dataset: Dataset) -> None:
    """Raises DataError for columns that the job names and no row has.

    A field whose column is not there may be one that no template uses; but where a row has a column
    of the field's own name, that one would be taken in silence.
    """
    read = [row for row in rows if row.fault is None]
    if not read or dataset.rows is not None:  # code names the fields of such rows
        return

    def is_there(column: str) -> bool:
        return any(column in row.values for row in read)

    def refuse(key: str, columns: Sequence[str]) -> NoReturn:
        raise DataError(
            f"{key}: no row has the column {columns[0]!r} (the first has {listed(read[0].values)})"
        )

    if dataset.id != Dataset().id and not any(map(is_there, dataset.id)):
        refuse("dataset.id", dataset.id)
    for field, columns in dataset.fields.items():
        if field not in columns and not any(map(is_there, columns)) and is_there(field):
            refuse(f"dataset.fields.{field}", columns)
