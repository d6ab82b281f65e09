"""Which order of fields and rows lets the prompts of a table share the most.

Greedy group recursion, algorithm 1 of Liu et al., "Optimizing LLM Queries in Relational Data
Analytics Workloads" (arXiv 2403.05821): the value whose repetitions save the most goes in front of
the rows that have it, these rows are ordered by their other fields alone, and so is the rest by
all. Where the paper weighs a value by the square of its length, this takes its tokens: a prefix is
computed once here, whatever its length. That a field decides others (a functional dependency) is
seen in the data.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Placed:
    """A row, by its index in the given order, and the order of its fields, by theirs."""

    row: int
    fields: tuple[int, ...]


def greedy_groups(
    columns: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]]
) -> list[Placed]:
    """The rows of a table in the order that shares much, each with the order of its fields.

    columns: [num_fields][num_rows] which of its field's values each row has; lengths: [num_fields]
    [num_values] tokens of each value. Where nothing is gained by another order it is the given one.
    """
    rows = range(len(columns[0])) if columns else range(0)
    table = _Table(columns, lengths, _decided(columns))
    return list(table.arranged(list(rows), list(range(len(columns))), ()))


def _decided(columns: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each field the other fields that it decides: rows alike in it are alike in
    them.
    """
    distinct = [len(set(column)) for column in columns]
    found: list[list[int]] = []
    for field, column in enumerate(columns):
        others: list[int] = []
        repeats = distinct[field] < len(column)  # a field without repeated values decides nothing
        for other in range(len(columns)) if repeats else ():
            if other != field and distinct[other] <= distinct[field]:
                pairs = set(zip(column, columns[other], strict=True))
                others += [other] if len(pairs) == distinct[field] else []
        found.append(others)
    return found


@dataclass(frozen=True)
class _Table:
    columns: Sequence[Sequence[int]]
    lengths: Sequence[Sequence[int]]
    decided: Sequence[Sequence[int]]

    def arranged(
        self, rows: list[int], fields: list[int], front: tuple[int, ...]
    ) -> Iterator[Placed]:
        """Rows that are alike in the fields `front`, by what they share in `fields`."""
        same = [f for f in fields if len({self.columns[f][row] for row in rows}) == 1]
        front += tuple(same)
        fields = [field for field in fields if field not in same]
        if len(rows) == 1 or not fields:
            yield from (Placed(row, (*front, *fields)) for row in rows)
            return
        left = dict.fromkeys(rows)
        for field, group in self._groups(rows, fields):
            for row in group:
                del left[row]
            others = [other for other in fields if other != field]
            yield from self.arranged(group, others, (*front, field))
        yield from (Placed(row, (*front, *fields)) for row in left)

    def _groups(self, rows: list[int], fields: list[int]) -> Iterator[tuple[int, list[int]]]:
        """Rows with a value in common, and its field: what saves the most first."""
        having: dict[tuple[int, int], list[int]] = defaultdict(list)
        for field in fields:
            for row in rows:
                having[field, self.columns[field][row]].append(row)
        count = Counter({key: len(group) for key, group in having.items()})
        weight = {
            key: self._weight(key, group[0], fields)
            for key, group in having.items()
            if len(group) > 1
        }
        heap = [(-weight[key] * (count[key] - 1), key) for key in weight]
        heapq.heapify(heap)
        taken: set[int] = set()
        while heap:
            saved, key = heapq.heappop(heap)
            now = -weight[key] * (count[key] - 1)
            if now >= 0:
                continue
            if now != saved:  # some of its rows are gone
                heapq.heappush(heap, (now, key))
                continue
            group = [row for row in having[key] if row not in taken]
            taken.update(group)
            for field in fields:
                count.subtract((field, self.columns[field][row]) for row in group)
            yield key[0], group

    def _weight(self, key: tuple[int, int], row: int, fields: list[int]) -> int:
        """Return the tokens of a value and of those that it decides."""
        field, value = key
        others = (other for other in self.decided[field] if other in fields)
        decided = sum(self.lengths[other][self.columns[other][row]] for other in others)
        return self.lengths[field][value] + decided
