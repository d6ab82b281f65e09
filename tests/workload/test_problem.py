from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError, UsageError
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import Workload, load_workload, random_key

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
RECIPE = """\
dataset: {fields: {q: [question, text], answer: answer}}
prompt: "Q: {{ q }}\\nA:"
example: "Q: {{ q }}\\nA: {{ answer }}\\n\\n"
answer: {patterns: ['\\d+'], gold: {field: answer, pattern: '####\\s*(.+)|^(\\d+)$'}}
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    examples = [{"question": f"e{i}", "answer": f"#### {i}", "kind": i % 2} for i in range(9)]

    def load(rows: list[dict[str, Any]], **flags: Any) -> Workload:
        for name, content in (("test", rows), ("train", examples)):
            text = "".join(json.dumps(row) + "\n" for row in content)
            (tmp_path / f"{name}.jsonl").write_text(text)
        recipe = str(tmp_path / "mine.yaml")
        return load_workload(resolve(recipe, str(tmp_path), {"model": "a/b", **flags}))

    return load


def test_problems_have_id_prompt_and_gold(load: Any) -> None:
    rows = [
        {"question": "one", "answer": "so\n#### 1"},
        {"text": "two", "answer": 2, "task_id": "t/2"},
        {"question": "three", "answer": "no number here"},
        {"question": "four"},
    ]
    problems = load(rows).problems
    assert [problem.id for problem in problems] == ["0", "t/2", "2", "3"]
    assert [problem.prompt.content for problem in problems[:2]] == ["Q: one\nA:", "Q: two\nA:"]
    assert [problem.gold for problem in problems] == ["1", "2", "no number here", None]
    assert len({problem.prompt_hash for problem in problems}) == 4


def test_a_gold_answer_without_a_marker_is_taken_whole(load: Any) -> None:
    answers = ["5", 5, " 5 apples", "so #### 5", "", ["5"], {"a": 5}, None]
    problems = load([{"question": "?", "answer": answer} for answer in answers]).problems
    wanted = ["5", "5", " 5 apples", "5", None, None, None, None]
    assert [problem.gold for problem in problems] == wanted


def test_a_field_that_is_no_text_is_a_bad_row(load: Any) -> None:
    """Python's own spelling of a list is nothing to ask."""
    fields: list[Any] = [["a", "b"], {"a": 1}, 7, 1.5, True, "ok"]
    workload = load([{"question": field} for field in fields])
    assert [p.prompt.content for p in workload.problems] == [
        "Q: 7\nA:", "Q: 1.5\nA:", "Q: True\nA:", "Q: ok\nA:"
    ]  # fmt: skip
    first, second = (bad.error for bad in workload.bad_rows)
    assert "line 1: the template 'prompt' writes the field 'question'" in first
    assert "of type list" in first and "of type dict" in second


def test_bad_rows_are_left_out_and_named(load: Any) -> None:
    workload = load([{"x": 1}, {"question": "b", "answer": "1"}, {"question": None, "id": "z"}])
    assert [problem.id for problem in workload.problems] == ["1"]
    assert [bad.id for bad in workload.bad_rows] == ["0", "z"]
    assert "test.jsonl, line 1" in workload.bad_rows[0].error
    assert "'q'" in workload.bad_rows[0].error


def test_what_is_said_of_chats_is_refused_where_there_is_none(load: Any) -> None:
    with pytest.raises(UsageError, match=r"chat\.template_kwargs: no prompt is a chat"):
        load([{"question": "?"}], chat={"template_kwargs": {"enable_thinking": False}})


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


def test_random_keys_hang_on_the_id_alone() -> None:
    assert random_key("17") == random_key("17") != random_key("18")
    assert all(0 <= random_key(str(i)) < 2**63 for i in range(1000))
    assert len({random_key(str(i)) for i in range(1000)}) == 1000


@pytest.mark.skipif(not SHARED.is_dir(), reason="no copy of GSM8K beside the checkout")
def test_gsm8k_from_disk() -> None:
    file = {"file": str(SHARED / "gsm8k_train.jsonl")}
    job = resolve(
        "self-consistency", str(SHARED / "gsm8k_test.jsonl"), {"model": "a/b", "few_shot": file}
    )
    workload = load_workload(job)
    assert len(workload.problems) == 1319 and not workload.bad_rows
    assert all(problem.gold for problem in workload.problems)
    first = workload.problems[0]
    assert first.gold == "18" and str(first.prompt).count("####") == 8
    assert str(first.prompt).endswith(f"Question: {first.fields['question']}\nAnswer:")


def test_a_row_without_an_id_takes_no_other_rows_id(load: Any) -> None:
    rows = [
        {"question": "one", "task_id": 1},
        {"question": "two"},
        {"question": "three"},
        {"question": "four", "task_id": None},
    ]
    assert [problem.id for problem in load(rows).problems] == ["1", "row 1", "2", "3"]
