"""Few-shot examples: which rows they are, and that no row stands before itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError
from sharegen.workload.configuration import resolve
from sharegen.workload.problem import Workload, load_workload


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


def shots(workload: Workload) -> dict[str, list[str]]:
    """The questions of each problem's examples."""
    texts = {problem.id: str(problem.prompt) for problem in workload.problems}
    return {name: re.findall("^Q: (.*)$", text, re.M)[:-1] for name, text in texts.items()}


@pytest.mark.parametrize(
    ("few_shot", "others", "own"),
    [
        ({"k": 2}, ["e0", "e1"], {"e1": ["e0", "e2"], "e0": ["e1", "e2"]}),
        ({"k": 2, "indices": [4, 1, 7]}, ["e4", "e1"], {"e1": ["e4", "e7"]}),
        ({"k": 2, "indices": [4, 1]}, ["e4", "e1"], {"e1": ["e4", "e0"]}),
        ({"k": 1, "where": {"kind": 1}}, ["e1"], {"e1": ["e3"]}),
    ],
)
def test_a_row_is_left_out_of_its_own_examples(
    load: Any, few_shot: Any, others: list[str], own: dict[str, list[str]]
) -> None:
    asked = ["e0", "e1", "e8", "new"]
    workload = load([{"question": question} for question in asked], few_shot=few_shot)
    found = dict(zip(asked, shots(workload).values(), strict=True))
    assert found == {question: own.get(question, others) for question in asked}


def test_a_seed_draws_who_takes_the_place(load: Any) -> None:
    few_shot = {"k": 3, "seed": 5}
    chosen = shots(load([{"question": "new"}], few_shot=few_shot))["0"]
    [first, second] = (
        shots(load([{"question": chosen[1]}], few_shot=few_shot))["0"] for _ in range(2)
    )
    assert first == second and first[:2] == [chosen[0], chosen[2]] and first[2] not in chosen


@pytest.mark.parametrize("chat", [False, True])
def test_it_is_the_question_that_counts_and_not_the_id_or_the_space(
    tmp_path: Path, chat: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows of one file that is both, as `--few-shot-file` may name the dataset itself."""
    rows = [{"id": i, "question": f"How  many are {i}?", "answer": f"#### {i}"} for i in range(4)]
    (tmp_path / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{**row, "id": f"q{row['id']}"} for row in rows]
    rows[1]["question"] = " How many\n are 1?"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = {
        "model": "a/b",
        "few_shot": {"k": 2, "file": str(tmp_path / "examples.jsonl")},
        "chat": {"enabled": chat},
    }
    workload = load_workload(resolve("self-consistency", str(tmp_path / "rows.jsonl"), flags))
    for place, problem in enumerate(workload.problems):
        assert f"#### {place}" not in str(problem.prompt).replace("after ####.", "")
        assert str(problem.prompt).count("#### ") == 2
    workload.name_odd_rows()
    assert caplog.messages == [
        f"{tmp_path / 'rows.jsonl'}, line 1, and 1 more: few-shot examples that are asked, "
        "too: each is left out of its own examples, where the next row takes its place"
    ]


def test_a_row_whose_place_no_other_takes_is_not_asked(load: Any) -> None:
    workload = load([{"question": "e3"}, {"question": "new"}], few_shot={"k": 9})
    assert [problem.id for problem in workload.problems] == ["1"]
    assert "one of its own few-shot examples" in workload.bad_rows[0].error
    assert "--few-shot 8" in workload.bad_rows[0].error


def test_a_template_that_draws_at_random_asks_the_same_of_the_same_row(load: Any) -> None:
    rows = [{"question": f"q{n}"} for n in range(12)]
    prompt = "{{ q }} {{ [1, 2, 3, 4, 5, 6, 7, 8] | random }}"
    one, two = ([p.prompt.content for p in load(rows, prompt=prompt).problems] for _ in range(2))
    assert one == two and len({str(text)[-1] for text in one}) > 1
