"""Few-shot examples: which rows stand before the problems, and that none stands before itself.

A row that is an example and is asked, too, would have its own answer in its prompt. It is left out
of its own examples, and the next row takes its place, so that every problem has as many; as in
lm-eval, which draws one more where examples and questions come from one split. Here it is what the
rows ask that counts, not where they are from: the questions of two files may be the same.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sharegen.errors import DataError
from sharegen.workload import template
from sharegen.workload.configuration import Configuration
from sharegen.workload.conversation import COLUMN
from sharegen.workload.dataset import DatasetRows, has_one_split, read_rows
from sharegen.workload.items import Item, items_of, read_split
from sharegen.workload.sections import Dataset, FewShot
from sharegen.workload.template import RenderError


@dataclass(frozen=True)
class Examples:
    """The rows that are examples, in the order in which they stand in the prompt.

    chosen: those of all problems; others: rows that may stand in for one of these, the next first.
    asked: the fields that distinguish rows: those that a prompt is made of.
    """

    chosen: Sequence[Item]
    others: Sequence[Item]
    asked: frozenset[str]

    def before(self, item: Item) -> Sequence[Item]:
        """The examples of one problem: `chosen` itself, unless the problem is among them.

        Raises RenderError where no other row can take its place.
        """
        asks = _Question(item.fields, self.asked)
        if not any(asks == question for question in self._questions):
            return self.chosen
        found = list(itertools.islice(self._others_than(asks), len(self.chosen)))
        if len(found) < len(self.chosen):
            raise RenderError(
                "it is one of its own few-shot examples, and no other row can take its place: give "
                f"--few-shot {len(found)}, or more examples"
            )
        return found

    def _others_than(self, asks: _Question) -> Iterator[Item]:
        for row in (*self.chosen, *self.others):
            if asks != _Question(row.fields, self.asked):
                yield row

    @cached_property
    def _questions(self) -> list[_Question]:
        return [_Question(item.fields, self.asked) for item in self.chosen]


class _Question:
    """What a row asks: the fields that its prompt is made of, whatever the space in them."""

    def __init__(self, fields: Mapping[str, Any], names: frozenset[str]) -> None:
        values = {name: fields[name] for name in names if name in fields}
        if not values and COLUMN in fields:  # a conversation in the place of a question
            values = {COLUMN: fields[COLUMN]}
        shortest_first = sorted(values.items(), key=lambda item: len(str(item[1])))
        self._values = {name: (value, str(value).split()) for name, value in shortest_first}

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Question)
        both = [name for name in self._values if name in other._values]
        return bool(both) and all(
            _is_same(self._values[name], other._values[name]) for name in both
        )

    __hash__ = None  # type: ignore[assignment]


def _is_same(one: tuple[Any, list[str]], other: tuple[Any, list[str]]) -> bool:
    """Whether two values are equal, or the words of their texts."""
    return one[1] == other[1] or bool(one[0] == other[0])


def examples_of(configuration: Configuration) -> Examples:
    """The examples of a job. Raises DataError where there are too few."""
    wanted, asked = configuration.few_shot, _asked(configuration)
    if wanted.k == 0:
        return Examples([], [], asked)
    rows = _example_rows(configuration.dataset, wanted)
    items, bad = items_of(rows.rows, configuration.dataset, wanted.where, None)
    if wanted.indices is not None:
        items = _pinned(items, wanted.indices, wanted.k)
    if len(items) < wanted.k:
        reason = f": {bad[0].error}" if bad else ""
        raise DataError(
            f"few-shot: {wanted.k} examples are wanted and {len(items)} are there{reason}: "
            "use --few-shot"
        )
    if wanted.indices is None and wanted.seed is not None:
        draws = random.Random(wanted.seed)
        chosen = draws.sample(items, wanted.k)
        places = {item.row.index for item in chosen}
        others = [item for item in items if item.row.index not in places]
        draws.shuffle(others)
        return Examples(chosen, others, asked)
    return Examples(items[: wanted.k], items[wanted.k :], asked)


def _pinned(items: Sequence[Item], indices: Sequence[int], k: int) -> list[Item]:
    """The rows of these indices in their order, then all others. Raises DataError."""
    by_index = {item.row.index: item for item in items}
    missing = [index for index in indices[:k] if index not in by_index]
    if missing or len(indices) < k:
        what = f"row {missing[0]} is not there" if missing else f"{len(indices)} indices"
        raise DataError(f"few-shot: {k} examples are wanted, but {what}")
    pinned = [by_index.pop(index) for index in dict.fromkeys(indices) if index in by_index]
    return [*pinned, *by_index.values()]


def _asked(configuration: Configuration) -> frozenset[str]:
    """The fields that a problem's own part of its prompt is made of, without its id."""
    chat = configuration.chat
    texts = [chat.user] if chat.enabled else [configuration.prompt.text]
    names = frozenset().union(*(template.names(text) for text in texts if text))
    own = names | set(configuration.prompt.free)
    return frozenset(own - {"examples", template.FIELDS, *configuration.dataset.id})


def _example_rows(dataset: Dataset, wanted: FewShot) -> DatasetRows:
    if wanted.file is not None:
        return read_rows(wanted.file, None, wanted.split)
    if dataset.source is not None and has_one_split(dataset.source):
        raise DataError(
            f"few-shot examples come from the split {wanted.split!r}, which "
            f"{dataset.source} does not have: give --few-shot-file FILE or --few-shot 0"
        )
    return read_split(dataset, wanted.split)
