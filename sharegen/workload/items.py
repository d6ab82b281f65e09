"""Dataset rows -> items: what templates see of a row, under the names that the recipe gives.

A row that its schema cannot read becomes a BadRow. Few-shot examples are items, too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharegen.errors import DataError
from sharegen.workload.configuration import Configuration
from sharegen.workload.dataset import Row, Rows, has_one_split, read_rows
from sharegen.workload.files.content import read_text
from sharegen.workload.needle import needle_rows
from sharegen.workload.sections import Dataset, FewShot


@dataclass(frozen=True)
class Item:
    """A row after its schema was applied: what templates see."""

    id: str
    row: Row
    fields: dict[str, Any]


@dataclass(frozen=True)
class BadRow:
    """One row that cannot be asked, and why in one line."""

    id: str
    error: str


def read_split(dataset: Dataset, split: str) -> Rows:
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


def examples(configuration: Configuration) -> list[Item]:
    """The few-shot rows, in the order in which they stand in the prompt."""
    wanted = configuration.few_shot
    if wanted.k == 0:
        return []
    rows = _example_rows(configuration.dataset, wanted)
    items, bad = items_of(rows.rows, configuration.dataset, wanted.where, None)
    indices = wanted.indices
    if indices is not None:
        by_index = {item.row.index: item for item in items}
        missing = [index for index in indices[: wanted.k] if index not in by_index]
        if missing or len(indices) < wanted.k:
            what = f"row {missing[0]} is not there" if missing else f"{len(indices)} indices"
            raise DataError(f"few-shot: {wanted.k} examples are wanted, but {what}")
        return [by_index[index] for index in indices[: wanted.k]]
    if len(items) < wanted.k:
        reason = f": {bad[0].error}" if bad else ""
        raise DataError(
            f"few-shot: {wanted.k} examples are wanted and {len(items)} are there{reason}: "
            "use --few-shot"
        )
    if wanted.seed is not None:
        return random.Random(wanted.seed).sample(items, wanted.k)
    return items[: wanted.k]


def _example_rows(dataset: Dataset, wanted: FewShot) -> Rows:
    if wanted.file is not None:
        return read_rows(wanted.file, None, wanted.split)
    if dataset.source is not None and has_one_split(dataset.source):
        raise DataError(
            f"few-shot examples come from the split {wanted.split!r}, which "
            f"{dataset.source} does not have: give --few-shot-file FILE or --few-shot 0"
        )
    return read_split(dataset, wanted.split)
