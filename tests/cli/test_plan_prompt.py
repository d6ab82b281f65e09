"""`sharegen plan` before anything is sampled: a whole prompt, and what gold answers it finds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, write_jsonl


@pytest.fixture
def plan(job: list[object]) -> list[object]:
    return ["plan", *job[1:-4]]


def test_a_whole_prompt_is_printed_as_it_is_asked(sharegen: Command, plan: list[object]) -> None:
    ran = sharegen(*plan, "--show-prompt")
    assert ran.code == 0, ran.err
    assert ran.out == (
        "Question: Tom has 3 apples and buys 4 more. How many?\nAnswer: #### 7\n\n"
        "Question: Tom has 4 apples and buys 5 more. How many?\nAnswer: #### 9\n\n"
        "Question: Tom has 6 apples and buys 7 more. How many?\nAnswer:\n"
    )
    assert "problem 0: " in ran.err and "gold answer: 13" in ran.err
    other = sharegen(*plan, "--show-prompt", "3", "--few-shot", 0)
    assert other.out == "Question: Tom has 9 apples and buys 10 more. How many?\nAnswer:\n"
    chat = sharegen(*plan, "--chat", "--show-prompt", "--few-shot", "0")
    assert "Tom has 6 apples" in chat.out and "after ####" in chat.out
    assert not chat.out.startswith("Tom")  # the template's own marks stand in front


def test_a_prompt_of_no_problem_is_refused(sharegen: Command, plan: list[object]) -> None:
    ran = sharegen(*plan, "--show-prompt", "44")
    assert ran.code == 1 and "--show-prompt 44: no problem that can be asked has it" in ran.err
    both = sharegen(*plan, "--show-prompt", "--json")
    assert both.code == 2 and "leave out --json" in both.err


def test_gold_answers_that_are_found_are_counted(
    sharegen: Command, plan: list[object], rows: Path
) -> None:
    told = sharegen(*plan)
    assert "gold answers" in told.out and "known of 6 of 6 problems" in told.out
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    del lines[1]["answer"]
    write_jsonl(rows, [*lines[:3], {**lines[3], "answer": ["1", "2"]}, *lines[4:]])
    some = sharegen(*plan)
    assert "known of 4 of 6 problems" in some.out
    assert "line 2: it has no field 'answer'" in some.err and "line 4: its gold answer" in some.err
    assert json.loads(sharegen(*plan, "--json").out)["golds"] == 4
    assert json.loads(sharegen(*plan, "--json", "--set", "answer=null").out)["golds"] is None


def test_an_extractor_that_is_not_there_is_refused(sharegen: Command, plan: list[object]) -> None:
    ran = sharegen(*plan, "--set", "answer.extract=boxes")
    assert ran.code == 2 and ran.err.count("\n") == 1
    assert all(f"'{kind}'" in ran.err for kind in ("number", "choice", "boxed", "text"))
