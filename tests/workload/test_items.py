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
