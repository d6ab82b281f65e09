"""`--reorder`: which prompts come of it, that they share no less, and that the journal knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.errors import DataError, JournalError, UsageError
from sharegen.job.dry_run import plan_job
from sharegen.job.reordering import load_asked, reorder
from sharegen.job.run_job import run_job
from sharegen.results.journal.record import read
from sharegen.workload.configuration import Configuration, resolve
from sharegen.workload.problem import Problem
from sharegen.workload.prompt import Prompt
from sharegen.workload.sampling_section import Sampling

RECIPE = """
prompt:
  text: "A table of reviews.\\n{{ fields }}Is it about {{ topic }}?"
  free: [review, product]
chat: {user: "{{ fields }}{{ topic }}?"}
sampling: {max_tokens: 4, temperature: 1.0}
"""
PRODUCTS = [f"{name} with a long description of all that it can do" for name in ("Pan", "Pot")]
ROWS = [
    {"id": f"r{n}", "review": f"Number {n} is fine", "product": PRODUCTS[n % 2], "topic": "heat"}
    for n in range(8)
]


@pytest.fixture
def place(folder: Path, tmp_path: Path) -> Path:
    """A recipe, its rows, and a folder with a model."""
    (tmp_path / "model").symlink_to(folder / "model")
    (tmp_path / "mine.yaml").write_text(RECIPE)
    write(tmp_path, ROWS)
    return tmp_path


def write(place: Path, rows: Sequence[dict[str, Any]]) -> None:
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def configure(place: Path, is_reordered: bool = True, **flags: Any) -> Configuration:
    given: dict[str, Any] = {
        "model": str(place / "model"),
        "reorder": is_reordered,
        "machine": {"device": "cpu", "kv_cache_memory": 1 << 22},
    }
    return resolve(str(place / "mine.yaml"), str(place / "rows.jsonl"), given | flags)


def test_free_fields_stand_as_declared_unless_it_is_asked(place: Path) -> None:
    given = load_asked(configure(place, False))
    assert [problem.id for problem in given.problems] == [row["id"] for row in ROWS]
    first = given.problems[0].prompt.content
    assert first == (
        f"A table of reviews.\nreview: Number 0 is fine\nproduct: {PRODUCTS[0]}\nIs it about heat?"
    )
    moved = load_asked(configure(place))
    ids = [problem.id for problem in moved.problems]
    assert [ids[:4], ids[4:]] == [["r1", "r3", "r5", "r7"], ["r0", "r2", "r4", "r6"]]
    assert moved.problems[4].prompt.content == (
        f"A table of reviews.\nproduct: {PRODUCTS[0]}\nreview: Number 0 is fine\nIs it about heat?"
    )
    assert moved.problems[4].row_hash != given.problems[0].row_hash
    chat = load_asked(configure(place, chat={"enabled": True}, machine={"device": "cpu"}))
    assert str(chat.problems[0].prompt).startswith(f"[user]\nproduct: {PRODUCTS[1]}\nreview:")


def test_a_plan_says_what_the_order_saves(place: Path) -> None:
    given, moved = plan_job(configure(place, False)), plan_job(configure(place))
    assert given.saved_by_order is None and moved.saved_by_order is not None
    assert moved.computed + moved.saved_by_order == given.computed
    assert moved.saved_by_order > 0.3 * given.computed


def test_a_journal_knows_its_order(place: Path) -> None:
    path = place / "a.jsonl"
    assert run_job(configure(place), path).drawn == 8
    assert {record.problem_id for record in read(path)} == {row["id"] for row in ROWS}
    assert run_job(configure(place), path).drawn == 0
    write(place, ROWS[::-1])  # other rows in front, the same prompts
    assert run_job(configure(place), path).drawn == 0
    with pytest.raises(JournalError, match="reorder was true and is now false"):
        run_job(configure(place, False), path)
    write(place, [*ROWS, ROWS[0] | {"id": "r8", "review": ROWS[1]["review"]}])
    with pytest.raises(JournalError, match="another order of fields, which all rows"):
        run_job(configure(place), path)


def test_what_is_wrong_with_free_fields_is_one_line(place: Path) -> None:
    recipe = place / "mine.yaml"
    with pytest.raises(UsageError, match=r"--reorder: the recipe prompts declares no fields"):
        resolve("prompts", str(place / "rows.jsonl"), {"model": "m", "reorder": True})
    recipe.write_text(RECIPE.replace("{{ fields }}Is", "Is"))
    with pytest.raises(UsageError, match=r"template 'prompt' has no place .* \{\{ fields \}\}"):
        configure(place)
    recipe.write_text(RECIPE.replace("[review, product]", "[review, review]"))
    with pytest.raises(UsageError, match="'review' stands twice among the free fields"):
        configure(place)
    recipe.write_text(RECIPE.replace("[review, product]", "[review, price]"))
    with pytest.raises(DataError, match=r"names the field 'price', which the row does not have"):
        load_asked(configure(place))
    recipe.write_text("prompt: 5\n")
    with pytest.raises(UsageError, match="prompt is 5: it must be a text, or a mapping"):
        configure(place, False)
    recipe.write_text("prompt: {free: [review]}\n")
    with pytest.raises(UsageError, match=r"the key 'prompt\.text' is missing"):
        configure(place, False)
    recipe.write_text(RECIPE + "reorder: true\n")  # a recipe does not ask it
    with pytest.raises(UsageError, match="unknown key 'reorder'"):
        configure(place)
    recipe.write_text(RECIPE)
    write(place, [row | {"product": [1]} for row in ROWS])
    with pytest.raises(DataError, match=r"'product', which 'prompt.free' names, is of type list"):
        load_asked(configure(place))


class Letters(SimpleNamespace):
    """A tokenizer of letters, in which a doubled letter is one token."""

    def __call__(self, text: str | list[str], **_: Any) -> dict[str, Any]:
        if isinstance(text, str):
            return {"input_ids": self._ids(text)}
        return {"input_ids": [self._ids(each) for each in text]}

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for letter in map(ord, text):
            if ids and ids[-1] == letter:
                ids[-1] = letter + 1000
            else:
                ids.append(letter)
        return ids


FREE = ["a", "b", "c"]


def problem_of(name: str, fields: dict[str, str], order: Sequence[str] = FREE) -> Problem:
    text = "Head." + "".join(f"{name}: {fields[name]}\n" for name in order) + "?"
    return Problem(name, fields, Prompt(text, text), None, "hash", Sampling())


words = st.sampled_from(["", "x", "xx", "xxxxxxxx", "yyxx", "yxyxyxyxyx", "zzzz zz"])


@settings(max_examples=40)
@given(st.lists(st.fixed_dictionaries(dict.fromkeys(FREE, words)), min_size=1, max_size=9))
def test_no_fewer_tokens_are_shared(rows: list[dict[str, str]]) -> None:
    problems = [problem_of(str(number), row) for number, row in enumerate(rows)]

    def render(problem: Problem, order: Sequence[str]) -> Problem:
        return replace(problem_of(problem.id, dict(problem.fields), order))

    found = reorder(problems, FREE, render, Letters(), 4)
    assert sorted(problem.id for problem in found.problems) == sorted(p.id for p in problems)
    (asked, given), (asked_then, computed) = (
        tokens([str(problem.prompt) for problem in each]) for each in (problems, found.problems)
    )
    assert (found.given, found.computed) == (given, computed)
    assert computed <= given and asked_then - computed >= asked - given
    if computed == given:
        assert found.problems == problems


def tokens(prompts: list[str]) -> tuple[int, int]:
    ids = Letters()(prompts)["input_ids"]
    return sum(map(len, ids)), PrefixTree.build(ids, 4).num_tokens
