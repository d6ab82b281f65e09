"""Rows under the names of the recipe: which are kept, what they are called, and the examples."""

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


@pytest.mark.parametrize(
    ("few_shot", "expected"),
    [
        ({"k": 2}, ["e0", "e1"]),
        ({"k": 2, "indices": [4, 1, 7]}, ["e4", "e1"]),
        ({"k": 2, "where": {"kind": 1}}, ["e1", "e3"]),
    ],
)
def test_few_shot_examples(load: Any, few_shot: Any, expected: list[str]) -> None:
    prompt = load([{"question": "x"}], few_shot=few_shot).problems[0].prompt
    numbers = [name[1:] for name in expected]
    shots = "".join(f"Q: {e}\nA: #### {n}\n\n" for e, n in zip(expected, numbers, strict=True))
    assert prompt.content == shots + "Q: x\nA:"
    assert prompt.own == "Q: x\nA:"


def test_few_shot_by_seed_is_fixed(load: Any) -> None:
    prompts = {
        seed: [load([{"question": "x"}], few_shot={"k": 4, "seed": seed}).problems[0].prompt.content
               for _ in range(2)]
        for seed in (1, 2)
    }  # fmt: skip
    assert prompts[1][0] == prompts[1][1] != prompts[2][0]
    assert prompts[1][0].count("A: ####") == 4


def test_few_shot_that_cannot_be(load: Any) -> None:
    for few_shot in ({"k": 10}, {"k": 2, "indices": [3]}, {"k": 1, "indices": [99]}):
        with pytest.raises(DataError, match="few-shot"):
            load([{"question": "x"}], few_shot=few_shot)


def test_a_row_without_an_id_takes_no_other_rows_id(load: Any) -> None:
    rows = [
        {"question": "one", "task_id": 1},
        {"question": "two"},
        {"question": "three"},
        {"question": "four", "task_id": None},
    ]
    assert [problem.id for problem in load(rows).problems] == ["1", "row 1", "2", "3"]
