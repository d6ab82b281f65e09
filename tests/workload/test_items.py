"""Rows under the names of the recipe: which are kept, and what they are called."""

from __future__ import annotations

from typing import Any

import pytest

from sharegen.errors import DataError


def test_limit_counts_rows_and_where_filters_them(load: Any) -> None:
    rows = [{"question": f"q{i}", "level": "hard" if i % 3 else "easy"} for i in range(9)]
    hard = {"where": {"level": "hard"}}
    assert [p.id for p in load(rows, dataset=hard).problems] == ["1", "2", "4", "5", "7", "8"]
    limited = load(rows, dataset={**hard, "limit": 3})
    assert [problem.id for problem in limited.problems] == ["1", "2", "4"]
    with pytest.raises(DataError, match="no row with level = 'none'"):
        load(rows, dataset={"where": {"level": "none"}})


def test_a_row_without_an_id_takes_no_other_rows_id(load: Any) -> None:
    rows = [
        {"question": "one", "task_id": 1},
        {"question": "two"},
        {"question": "three"},
        {"question": "four", "task_id": None},
    ]
    assert [problem.id for problem in load(rows).problems] == ["1", "row 1", "2", "3"]


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        ({"id": ["qid"]}, "dataset.id: no row has the column 'qid' .the first has question, level"),
        ({"fields": {"level": "levle"}}, "dataset.fields.level: no row has the column 'levle'"),
        (
            {"where": {"levle": 1}},
            "no row with levle = 1 .the first row has question, level, q",
        ),
    ],
)
def test_a_column_that_no_row_has_is_named(load: Any, dataset: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load([{"question": "one", "level": 1}], dataset=dataset)


def test_a_missing_field_names_the_columns_within_bounds_and_the_remedy(load: Any) -> None:
    rows = [{f"column {i} {'x' * 100}": i for i in range(3000)} | {"Q": "?"}]
    with pytest.raises(DataError) as caught:
        load(rows, prompt="{{ q }}")
    said = str(caught.value)
    assert "uses the field 'q', which the row does not have" in said and len(said) < 1000
    assert "and 2,989 more" in said and "--set dataset.fields.q=Q" in said
    with pytest.raises(DataError, match=r"--set dataset\.fields\.q=COLUMN"):
        load([{"other": 1}], prompt="{{ q }}")
