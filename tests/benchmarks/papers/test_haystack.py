"""A text with facts in it: whose they are, where they lie, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.papers.haystack import Size, haystack, is_right
from sharegen.errors import DataError
from sharegen.workload.needle import Fact

FACTS = [
    {"fact": f"The dog named {name} has fur that is {color}.", "question": f"What of {name}?",
     "answer": color}
    for name, color in (("Rex", "dark red"), ("Bo", "blue"), ("Ida", "green"))
]  # fmt: skip


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.jsonl"
    path.write_text("".join(json.dumps(fact) + "\n" for fact in FACTS), encoding="utf-8")
    return path


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "war.txt"
    path.write_text("It rained. Was it night? So it was! " * 20, encoding="utf-8")
    return path


def test_facts_and_text_of_theirs(facts: Path, document: Path) -> None:
    hay = haystack(Size(1, 1, examples=1), document, facts)
    assert [fact.answer for fact in (*hay.examples, *hay.asked)] == ["dark red", "blue", "green"]
    places = [hay.document.index(fact["fact"]) for fact in FACTS]
    assert places == sorted(places) and hay.document.count("It rained.") == 20
    assert hay.about(0) == hay.about(2) == hay.asked[0]
    assert hay.prompt(1).endswith(
        "\n\nQuestion: What of Rex?\nAnswer: dark red\n\nQuestion: What of Ida?\nAnswer:"
    )


def test_facts_and_text_of_ours(document: Path) -> None:
    hay = haystack(Size(200, 4, 2), None, None)
    assert abs(len(hay.document.split()) - 200) < 20
    for fact in (*hay.examples, *hay.asked):
        assert hay.document.count(fact.sentence) == 1
    assert len(haystack(Size(1, 4, 2), document, None).asked) == 4


def test_an_answer_is_words_of_the_first_line() -> None:
    fact = Fact("", "", "42 (b)")
    assert is_right(fact, " It is 42 (B).\nNo.") and is_right(fact, "\n42 (b)")
    assert not is_right(fact, "142 (b)") and not is_right(fact, "Dunno.\n42 (b)")
    assert not is_right(fact, "")


def test_refuses_a_text_shorter_than_its_facts(document: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"war\.txt: it has 160 words, fewer than the 1,100 of"):
        haystack(Size(1, 106, 4), document, None)
    with pytest.raises(DataError, match=r"none\.txt: cannot be read"):
        haystack(Size(1, 4, 2), tmp_path / "none.txt", None)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ('{"fact": "a", "question": "b", "answer": "c"}\n', "it has 1, and the first 1"),
        ('{"fact": "a", "question": "b"}\n', "line 1: it must have texts as fact"),
        ('{"fact": "a", "question": "b", "answer": 3}\n', "line 1: it must have texts"),
        ('{"fact": "a"\n', "line 1: "),
        ("", "facts.jsonl"),
    ],
)
def test_refuses_facts(lines: str, why: str, facts: Path) -> None:
    facts.write_text(lines, encoding="utf-8")
    with pytest.raises(DataError) as refused:
        haystack(Size(100, 4, 1), None, facts)
    assert why in str(refused.value) and "\n" not in str(refused.value)
