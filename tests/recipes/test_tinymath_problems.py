"""tinymath's problems: every answer adds up, and no test question is trained on."""

from __future__ import annotations

import json
import re
from itertools import islice
from pathlib import Path

import pytest

import sharegen.recipes.tinymath.problems as problems_module
from sharegen.recipes.tinymath.problems import (
    LARGEST,
    STEPS,
    STREAM_SEED,
    TEST_PROBLEMS,
    TRAIN_PROBLEMS,
    Problem,
    generate,
    held_out,
    held_out_questions,
    training_examples,
    validation,
)
from sharegen.recipes.tinymath.stories import OPENINGS, SEQUELS

FOLDER = Path(problems_module.__file__).parent
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
IN_WORDS = {"half": 2, "Half": 2, "twice": 2}


def stream(seed: int, count: int) -> list[Problem]:
    return list(islice(generate(seed), count))


@pytest.fixture(scope="module")
def shipped() -> dict[str, list[dict[str, str]]]:
    return {
        split: [json.loads(line) for line in (FOLDER / f"{split}.jsonl").open(encoding="utf-8")]
        for split in ("train", "test")
    }


@pytest.mark.parametrize("problem", [*stream(7, 300), *held_out()[:100]], ids=lambda p: "")
def test_each_step_follows_from_the_question_and_the_steps_before(problem):
    *lines, last = problem.answer.split("\n")
    known = {int(number) for number in re.findall(r"\d+", problem.question)}
    known |= {value for word, value in IN_WORDS.items() if word in problem.question}
    for line in lines:
        ((a, sign, b, result),) = EQUATION.findall(line)
        assert {int(a), int(b)} <= known, line
        computed = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}
        if sign == "/":
            assert int(a) % int(b) == 0
            computed["/"] = int(a) // int(b)
        assert computed[sign] == int(result)
        assert 1 < int(result) <= LARGEST
        known.add(int(result))
    assert last == f"#### {result}"
    assert problem.number == int(result)
    assert problem.steps == len(lines)
    assert STEPS[0] <= len(lines) <= STEPS[1]


def test_every_number_of_a_question_is_needed():
    for problem in stream(8, 500):
        operands = {n for a, _, b, _ in EQUATION.findall(problem.answer) for n in (a, b)}
        assert set(re.findall(r"\d+", problem.question)) <= operands, problem.question


def test_texts_have_no_loose_ends():
    for problem in stream(9, 500):
        assert not re.search(r"[{}|]|  ", problem.question + problem.answer)
        assert problem.question.endswith("?")
        assert problem.answer[0].isalpha()  # the prompt's last token is the same for all answers


def test_there_are_many_templates_and_all_are_told():
    assert len(OPENINGS) >= 40
    assert len(SEQUELS) >= 20
    assert all(len(set(piece.texts)) >= 2 for piece in OPENINGS + SEQUELS)
    told = "\n".join(problem.question for problem in stream(10, 5000))
    for piece in OPENINGS + SEQUELS:
        # A question is asked only where a chain can end.
        ends = piece.needs is not None or len(piece.steps) >= STEPS[0]
        for text in (*piece.texts, *piece.asks) if ends else piece.texts:
            pattern = re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(text))
            assert re.search(pattern, told), text


def test_a_seed_gives_the_same_problems_and_another_seed_others():
    assert stream(11, 50) == stream(11, 50)
    assert not set(stream(11, 50)) & set(stream(12, 50))


def test_shipped_rows_are_what_the_generator_writes(shipped):
    for split, made in (("train", training_examples()), ("test", held_out())):
        assert shipped[split] == [{"question": p.question, "answer": p.answer} for p in made]


def test_shipped_rows_have_the_schema_of_gsm8k(shipped):
    assert len(shipped["train"]) == TRAIN_PROBLEMS >= 2000
    assert len(shipped["test"]) == TEST_PROBLEMS == 200
    for row in shipped["train"] + shipped["test"]:
        assert set(row) == {"question", "answer"}
        assert re.search(r"\n#### \d+$", row["answer"])


def test_no_test_question_is_trained_on(shipped):
    test = {row["question"] for row in shipped["test"]}
    train = {row["question"] for row in shipped["train"]}
    assert len(test) == 200
    assert len(train) == len(shipped["train"])
    assert not test & train
    assert test == held_out_questions()
    assert not test & {problem.question for problem in validation(50)}


def test_training_streams_start_above_the_seeds_of_the_files():
    seeds = {problems_module.TEST_SEED, problems_module.VALIDATION_SEED, problems_module.TRAIN_SEED}
    assert len(seeds) == 3
    assert max(seeds) < STREAM_SEED
