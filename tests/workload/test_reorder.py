"""The order of rows and fields that shares much, on tables of values that are atoms."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from sharegen.workload.reorder import Placed, greedy_groups

Table = list[list[int]]


def shared(table: Sequence[Sequence[int]], lengths: Table, order: Sequence[Placed]) -> int:
    """Tokens that are not computed again, for the rows before have the same beginning."""
    seen: set[tuple[tuple[int, int], ...]] = set()
    saved = 0
    for placed in order:
        path: tuple[tuple[int, int], ...] = ()
        for field in placed.fields:
            value = table[field][placed.row]
            path += ((field, value),)
            saved += lengths[field][value] if path in seen else 0
            seen.add(path)
    return saved


def as_given(table: Sequence[Sequence[int]]) -> list[Placed]:
    return [Placed(row, tuple(range(len(table)))) for row in range(len(table[0]))]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Table, Table]:
    rows, fields = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    value = st.integers(0, 3)
    columns = [draw(st.lists(value, min_size=rows, max_size=rows)) for _ in range(fields)]
    lengths = [draw(st.lists(st.integers(0, 9), min_size=4, max_size=4)) for _ in range(fields)]
    return columns, lengths


@given(tables())
def test_it_is_a_permutation(table: tuple[Table, Table]) -> None:
    columns, lengths = table
    order = greedy_groups(columns, lengths)
    assert sorted(placed.row for placed in order) == list(range(len(columns[0])))
    fields = list(range(len(columns)))
    assert all(sorted(placed.fields) == fields for placed in order)
    assert order == greedy_groups(columns, lengths)


def test_the_value_that_saves_the_most_goes_in_front() -> None:
    """Figure 1 of the paper: a review of its own before a product that many rows have."""
    reviews, products = list(range(6)), [0, 1, 0, 1, 0, 1]
    lengths = [[50] * 6, [100, 20]]
    order = greedy_groups([reviews, products], lengths)
    assert [placed.row for placed in order] == [0, 2, 4, 1, 3, 5]
    assert {placed.fields for placed in order} == {(1, 0)}
    assert shared([reviews, products], lengths, order) == 2 * 100 + 2 * 20


def test_a_field_brings_those_that_it_decides() -> None:
    """One value of `title` for each `id`: together they outweigh a longer value that repeats."""
    ids, titles = [0, 0, 1, 1], [0, 0, 1, 1]
    colours = [0, 1, 0, 1]
    lengths = [[2, 2], [9, 9], [10, 10]]
    order = greedy_groups([ids, titles, colours], lengths)
    assert [placed.row for placed in order] == [0, 1, 2, 3]
    assert {placed.fields[-1] for placed in order} == {2}


def test_where_nothing_is_gained_the_order_is_the_given_one() -> None:
    for table in ([[0, 1, 2], [0, 1, 2]], [[0, 0, 0], [0, 0, 0]]):
        assert greedy_groups(table, [[5] * 3, [5] * 3]) == as_given(table)
    assert greedy_groups([], []) == []


def test_a_table_of_questions_shares_several_times_more() -> None:
    """2,000 rows of six fields, of which some repeat, in the order that shares the least."""
    rng = random.Random(0)
    rows = 2_000
    kinds = [rows, 1_500, 400, 40, 12, 3]  # different values of each field
    product = [rng.randrange(40) for _ in range(rows)]
    columns = [[rng.randrange(kind) for _ in range(rows)] for kind in kinds]
    columns[3], columns[4] = product, [value % 12 for value in product]  # decided by it
    lengths = [[rng.randint(5, 60) for _ in range(kind)] for kind in kinds]
    order = greedy_groups(columns, lengths)
    asked = sum(lengths[f][v] for f, column in enumerate(columns) for v in column)
    before, after = shared(columns, lengths, as_given(columns)), shared(columns, lengths, order)
    assert (asked - before) / (asked - after) > 1.5
