"""tinymath's tokenizer and training rows."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from transformers import AutoTokenizer

import sharegen.recipes.tinymath.corpus as corpus
from sharegen.recipes.tinymath.corpus import ROW, RowMaker, example, prompt, train_tokenizer
from sharegen.recipes.tinymath.problems import Problem, generate, held_out, training_examples


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(training_examples()).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    "text",
    ["", "12 + 345", "A\n\nB", "  two  spaces ", "tab\tand\r\n", "Zoë 数学 🙂", "#### -1,018.50\n"],
)
def test_any_text_survives_the_round_trip(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < corpus.VOCABULARY == len(tokenizer)


def test_every_digit_is_a_token(tokenizer):
    ids = tokenizer("Tom has 1234 pens, 56*7=392 more", add_special_tokens=False).input_ids
    tokens = [tokenizer.decode(i) for i in ids]
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("1234567392")


def test_bos_stands_once_at_the_start(tokenizer):
    ids = tokenizer(prompt(training_examples()[:2], held_out()[0])).input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.bos_token_id) == 1
    assert len({tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}) == 3


def test_the_prompt_is_what_the_recipe_asks():
    problem = Problem("How many?", "Together 1+2=3 pens.\n#### 3")
    assert prompt([problem], problem) == (
        "Question: How many?\nAnswer: Together 1+2=3 pens.\n#### 3\n\nQuestion: How many?\nAnswer:"
    )


def test_a_problem_has_the_same_tokens_alone_and_among_others(tokenizer):
    problems = list(islice(generate(3), 50))
    whole = tokenizer("".join(map(example, problems)), add_special_tokens=False).input_ids
    apart = [
        token
        for problem in problems
        for part in (
            corpus.HEAD.format(question=problem.question),
            corpus.TAIL.format(answer=problem.answer),
        )
        for token in tokenizer(part, add_special_tokens=False).input_ids
    ]
    assert whole == apart


def test_few_shot_prompts_are_short_and_fit_a_training_row(tokenizer):
    examples = training_examples()[: corpus.FEW_SHOT]
    prompts = [len(tokenizer(prompt(examples, p)).input_ids) for p in held_out()]
    answers = [len(tokenizer(corpus.TAIL.format(answer=p.answer)).input_ids) for p in held_out()]
    assert max(prompts) + max(answers) <= ROW
    assert np.mean(answers) < 100


def test_rows_are_whole_problems_closed_by_eos(folder, tokenizer):
    tokens, in_answer = RowMaker(folder / "tokenizer.json", 3)(0)
    assert tokens.shape == in_answer.shape == (3, ROW)
    for row, answers in zip(tokens, in_answer, strict=True):
        length = int((row != tokenizer.pad_token_id).sum())
        assert (row[length:] == tokenizer.pad_token_id).all()
        assert row[0] == tokenizer.bos_token_id
        assert row[length - 1] == tokenizer.eos_token_id
        text = tokenizer.decode(row[1 : length - 1])
        assert text.startswith("Question: ")
        assert text.count("Question: ") == text.count("\n#### ") > 5
        first_answer = tokenizer.decode(row[answers])
        assert first_answer.count("Question") == 0
        assert not answers[length:].any()


@pytest.mark.slow
def test_shards_are_reproducible_and_differ(folder):
    make = RowMaker(folder / "tokenizer.json", 2)
    assert (make(4)[0] == make(4)[0]).all()
    assert (make(4)[0] != make(5)[0]).any()
