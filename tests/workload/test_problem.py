from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import UsageError
from sharegen.workload.configuration import resolve
from sharegen.workload.gold import Gold
from sharegen.workload.problem import Workload, load_workload, random_key
from sharegen.workload.template import RenderError, render

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


def unread(workload: Workload) -> list[Gold]:
    """The gold answers that cannot be read."""
    return [gold for gold in workload.golds.values() if gold.text is None]


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
    answers = ["5", 5, " 5 apples", "so #### 5", ["5"], [5.0], "", ["5", "6"], {"a": 5}, None, []]
    workload = load([{"question": "?", "answer": answer} for answer in answers])
    wanted = ["5", "5", " 5 apples", "5", "5", "5.0", None, None, None, None, None]
    assert [problem.gold for problem in workload.problems] == wanted
    faults = [str(gold.fault) for gold in unread(workload)]
    assert "is empty" in faults[0] and "{{ answer[0] }}" in faults[1]
    assert "a dict" in faults[2] and "{{ answer.a }}" in faults[2]
    assert "--set dataset.fields.answer=COLUMN" in faults[3] and "a list of 0" in faults[4]
    assert [gold.where.rpartition(" ")[2] for gold in unread(workload)] == [*"789", "10", "11"]


def test_a_template_makes_a_gold_answer_of_a_row(load: Any) -> None:
    gold = {"field": None, "template": "{{ 'ABCD'[answer] }}", "pattern": None}
    rows = [{"question": "?", "answer": answer} for answer in (2, 0, 7, "x")]
    workload = load(rows, answer={"extract": "choice", "gold": gold})
    assert [problem.gold for problem in workload.problems] == ["C", "A", None, None]
    assert all("'answer.gold.template'" in str(gold.fault) for gold in unread(workload))


def test_gold_answers_that_cannot_be_read_are_named_with_their_rows(
    load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    workload = load([{"question": "?", "answer": answer} for answer in ("1", None, "2", "")])
    workload.name_odd_rows()
    [line] = caplog.messages
    assert line.startswith("gold answers are known of 2 of 4 problems: ")
    assert "line 2: it has no field 'answer'" in line and "line 4: its gold answer is empty" in line


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
    assert first.gold is not None and first.gold.endswith("\n#### 18")
    assert str(first.prompt).count("####") == 8
    assert str(first.prompt).endswith(f"Question: {first.fields['question']}\nAnswer:")


def test_empty_cells_of_a_csv(tmp_path: Path) -> None:
    """An empty question is a bad row by name, an empty answer none, an empty id the row's place."""
    path = tmp_path / "a.csv"
    path.write_text("id,question,answer\n007,NA?,#### NA\n,B?,\n3, ,6\n")
    job = resolve("self-consistency", str(path), {"model": "a/b", "few_shot": {"k": 0}})
    workload = load_workload(job)
    assert [problem.id for problem in workload.problems] == ["007", "1"]
    assert workload.problems[1].gold is None
    (bad,) = workload.bad_rows
    assert bad.id == "3"
    assert bad.error == f"{path}, line 4: the field 'question' is empty: there is nothing to ask"
    assert bad.message == f"{bad.error} (the row is left out)"


def test_a_prompt_of_empty_fields_asks_nothing(load: Any) -> None:
    workload = load([{"question": "a?"}, {"question": ""}, {"text": "b?", "answer": ""}])
    assert [problem.fields["q"] for problem in workload.problems] == ["a?", "b?"]
    assert "line 2: the field 'q' is empty" in workload.bad_rows[0].error


def test_an_empty_text_alone_is_a_prompt_and_no_turn(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('prompt\n""\nb\n')
    plain = load_workload(resolve("prompts", str(path), {"model": "a/b"}))
    assert [problem.prompt.content for problem in plain.problems] == ["", "b"]
    chat = load_workload(resolve("prompts", str(path), {"model": "a/b", "chat": {"enabled": True}}))
    assert len(chat.problems) == 1
    assert "line 2: the field 'prompt' is empty" in chat.bad_rows[0].error


def test_nan_is_a_missing_value(tmp_path: Path) -> None:
    """JSON has none, and Python writes and reads it; tables write it for what is not there."""
    path = tmp_path / "q.jsonl"
    lines = ('{"question": NaN, "answer": "#### 1"}', '{"question": "a?", "answer": NaN}')
    path.write_text("\n".join((*lines, '{"question": "b?", "answer": -0.0}')))
    flags = {"model": "a/b", "few_shot": {"k": 0}}
    workload = load_workload(resolve("self-consistency", str(path), flags))
    assert [problem.fields["question"] for problem in workload.problems] == ["a?", "b?"]
    assert [problem.gold for problem in workload.problems] == [None, "-0.0"]
    assert [bad.error.split(": ")[0] for bad in workload.bad_rows] == [f"{path}, line 1"]
    assert "the field 'question', which the row does not have" in workload.bad_rows[0].error


def test_nan_inside_of_a_list_is_no_text() -> None:
    with pytest.raises(RenderError, match="NaN, a missing value: that is not text"):
        render("prompt", "{{ values[0] }}", {"values": [float("nan")]})
