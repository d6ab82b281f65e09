from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sharegen.errors import DataError, UsageError
from sharegen.workload.configuration import resolve
from sharegen.workload.needle import needle_rows
from sharegen.workload.problem import load_workload
from sharegen.workload.sections import Needles


@pytest.mark.parametrize("words", [1, 400, 5000])
def test_every_answer_stands_once_in_the_document(words: int) -> None:
    needles = Needles(words=words, questions=20, examples=5)
    rows = {split: needle_rows(needles, split).rows for split in ("train", "test")}
    assert (len(rows["train"]), len(rows["test"])) == (5, 20)
    documents = {row.values["document"] for both in rows.values() for row in both}
    (document,) = documents
    assert len({row.values["question"] for both in rows.values() for row in both}) == 25
    for row in (*rows["train"], *rows["test"]):
        name = row.values["question"].removeprefix("Which number opens the locker of ")[:-1]
        fact = f"The locker of {name} opens with the number {row.values['answer']}."
        assert document.count(fact) == 1
    if words > 300:
        assert abs(len(document.split()) - words) < 20


def test_facts_lie_all_through_the_document() -> None:
    needles = Needles(words=5000, questions=50)
    rows = needle_rows(needles, "test").rows
    document = rows[0].values["document"]
    places = sorted(document.index(f"number {row.values['answer']}.") for row in rows)
    gaps = [
        after - before for before, after in zip([0, *places], [*places, len(document)], strict=True)
    ]
    assert max(gaps) < len(document) / 8


def test_the_seed_decides() -> None:
    one, same, other = (
        needle_rows(Needles(words=300, questions=3, seed=seed), "test") for seed in (1, 1, 2)
    )
    assert one == same and one.fingerprint != other.fingerprint


def test_more_facts_than_names() -> None:
    assert len(needle_rows(Needles(words=10, questions=1024), "test").rows) == 1024
    with pytest.raises(DataError, match=r"needles\.questions is 5000: at most"):
        needle_rows(Needles(questions=5000), "test")


def load(source: str | None = None, **flags: Any) -> Any:
    return load_workload(resolve("long-document", source, {"model": "a/b", **flags}))


def test_the_recipe_asks_five_shot_after_the_document() -> None:
    workload = load(dataset={"needles": {"words": 300, "questions": 4}})
    assert len(workload.problems) == 4
    for problem in workload.problems:
        text = str(problem.prompt)
        document, *asked = text.split("Question: ")
        assert document.rstrip() == problem.fields["document"] and len(asked) == 6
        assert problem.prompt.own == f"Question: {problem.fields['question']}\nAnswer:"
        assert problem.gold is not None and f"number {problem.gold}." in document
    shared = {str(problem.prompt).removesuffix(problem.prompt.own) for problem in workload.problems}
    assert len(shared) == 1


def test_chat_has_the_document_in_its_system_message() -> None:
    flags = {"dataset": {"needles": {"words": 100, "questions": 2}}, "chat": {"enabled": True}}
    turns = load(**flags).problems[0].prompt.content
    assert [turn["role"] for turn in turns] == ["system", *["user", "assistant"] * 5, "user"]
    assert "opens with the number" in turns[0]["content"]
    assert not any("opens with the number" in turn["content"] for turn in turns[1:])


def test_a_document_of_ones_own_by_file_or_by_field(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("It was a dark night.")
    questions = tmp_path / "q.jsonl"
    questions.write_text(json.dumps({"question": "How was the night?", "answer": "dark"}))
    flags = {"few_shot": {"k": 0}, "dataset": {"document": str(tmp_path / "book.txt")}}
    workload = load(str(questions), **flags)
    expected = "It was a dark night.\n\nQuestion: How was the night?\nAnswer:"
    assert workload.problems[0].prompt.content == expected
    assert workload.problems[0].gold == "dark"
    before = workload.fingerprints["document"]
    (tmp_path / "book.txt").write_text("It was a bright day.")
    assert load(str(questions), **flags).fingerprints["document"] != before

    row = {"question": "How was the night?", "context": "It was a dark night."}
    questions.write_text(json.dumps(row))
    workload = load(str(questions), few_shot={"k": 0})
    assert workload.problems[0].prompt.content == expected


def test_documents_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"question": "?"}')
    questions = str(tmp_path / "q.jsonl")
    with pytest.raises(UsageError, match=r"--document none\.txt: no such file"):
        load(questions, dataset={"document": "none.txt"})
    (tmp_path / "book.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"book\.txt, line 1: is not UTF-8"):
        load(questions, few_shot={"k": 0}, dataset={"document": str(tmp_path / "book.txt")})
    with pytest.raises(UsageError, match="--document: the recipe prompts has no template"):
        flags = {"model": "a/b", "dataset": {"document": str(tmp_path / "book.txt")}}
        resolve("prompts", str(tmp_path), flags)
