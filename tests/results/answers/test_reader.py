"""What is read out of a completion: as a careful person reads it."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from sharegen.results.answers.normal import normalise
from sharegen.results.answers.reader import AnswerReader

HERE = Path(__file__).parent


def cases(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / name).read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", ["answers.jsonl", "readings.jsonl"])
def test_texts_are_read_as_a_careful_person_reads_them(name: str) -> None:
    """answers.jsonl: as chat and base models write; readings.jsonl: more of each kind."""
    wrong = []
    for case in cases(name):
        found = AnswerReader(case.get("extract", "number")).read(
            case["text"], case.get("finish_reason")
        )
        wanted, got = case["answer"], None if found is None else found.answer
        if (wanted and normalise(wanted)) != (got and normalise(got)):
            wrong.append((case["text"], wanted, got))
    assert not wrong


def test_the_examples_of_the_page_are_read_as_it_says() -> None:
    page = (HERE.parents[2] / "docs" / "reference" / "answers.md").read_text("utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (.*?) ?\| (.*?) ?\|$", page.split("| rule |")[1], re.M)
    examples = [row for row in rows if "`" not in row[1]]
    assert len(examples) == 9
    for text, answer, rule in examples:
        found = AnswerReader("number").read(text.replace(r"\n", "\n"))
        assert (found and (found.answer, found.rule)) == ((answer, rule) if answer else None)


@pytest.mark.parametrize("extract", ["number", "choice", "boxed", "text"])
def test_a_reading_says_where_it_stands(extract: Any) -> None:
    for case in (*cases("answers.jsonl"), *cases("readings.jsonl")):
        found = AnswerReader(extract).read(case["text"])
        if found is not None:
            assert found.rule and found.answer
            where = case["text"][found.start : found.end]
            assert where.strip(), case
            if extract in ("boxed", "text"):
                assert where.strip() == found.answer


def test_what_a_model_wrote_in_the_notation_of_gsm8k_is_read_exactly() -> None:
    for number in ("24", "-3", "1,250", "0.5", "12.50", "1000000"):
        for end in (f"#### {number}", f"A: {number}"):
            text = f"He sold 48/2=<<48/2=24>>24 clips.\nIn all 48+24 = $<<48+24=72>>72.\n{end}"
            found = AnswerReader("number").read(text)
            assert found is not None and text[found.start : found.end] == number
            assert found.answer == normalise(number)


def test_the_solutions_of_gsm8k() -> None:
    folder = Path(__file__).resolve().parents[4] / "shared" / "data"
    rows = [
        json.loads(line)["answer"]
        for path in sorted(folder.glob("gsm8k_*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    if not rows:
        pytest.skip("GSM8K is not here")
    for solution in rows:
        found = AnswerReader("number").read(solution)
        assert found is not None
        assert found.answer == solution.split("#### ")[-1].strip().replace(",", "")


def test_patterns_come_before_the_reader() -> None:
    reader = AnswerReader("number", (r"result=(\w+)",))
    assert [reader.read(text).answer for text in ("result=x #### 18", "#### 18")] == ["x", "18"]  # type: ignore[union-attr]
    assert AnswerReader(None, (r"result=(\w+)",)).read("#### 18") is None


def test_what_a_cut_completion_may_have_gone_on_with_is_no_answer() -> None:
    for reader in (AnswerReader("number"), AnswerReader(None, (r"#### (\d+)",))):
        assert reader.read("#### 18", "length") is None
        for finish in ("stop", "eos", None):
            assert reader.read("#### 18", finish) is not None
        found = reader.read("#### 18\n\nQuestion: wh", "length")
        assert found is not None and found.answer == "18"


NASTY = [
    *("#" * 100_000, "#### " * 20_000, "####\n" * 20_000, "*" * 100_000, "**a " * 25_000),
    *("the answer is " * 7_000, "Answer:\n" * 12_000, "Q: 1\n" * 20_000, "(" * 100_000),
    *("\\boxed{" * 14_000, "\\boxed{1}" * 11_000, "9" * 100_000, "1," * 50_000, "1 " * 50_000),
    *("1/" * 50_000, "1-" * 50_000, "= " * 50_000, "1:" * 50_000, "<think>" * 14_000),
    *("one " * 25_000, "(A) " * 25_000, " " * 100_000, "\n" * 100_000, "wait " * 20_000),
    *("a. " * 33_000, "#### 1\nwait, so it is 2. " * 4_000, "-" * 100_000, "<<" * 50_000),
    *(
        "$1 " * 33_000,
        "\\frac{1}{" * 11_000,
        "in 5 days " * 10_000,
        "答案是" * 33_000,
        "𝟙" * 50_000,
    ),
]


@pytest.mark.turn(4)
@pytest.mark.parametrize("text", NASTY, ids=lambda text: re.sub(r"\W", "-", text[:12]))
def test_no_text_takes_long(text: str) -> None:
    for extract in ("number", "choice", "boxed", "text"):
        started = time.process_time()
        AnswerReader(extract).read(text)  # type: ignore[arg-type]
        assert time.process_time() - started < 2


def test_a_text_of_16_mib_is_read_at_its_end() -> None:
    started = time.process_time()
    found = AnswerReader("number").read("я" * 2**24 + "\n#### 18")
    assert found is not None and (found.answer, found.start) == ("18", 2**24 + 6)
    assert time.process_time() - started < 5
