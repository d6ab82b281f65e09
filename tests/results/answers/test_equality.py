"""Right answers: by what both are; of mathematics within limits."""

from __future__ import annotations

import json
import logging
import re
import resource
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sharegen.results.answers import equality, mathematics
from sharegen.results.answers.equality import equality_used, is_right, is_settled
from sharegen.results.answers.normal import normalise
from sharegen.results.journal.record import read
from sharegen.results.scoring.vote import tally


@pytest.mark.parametrize(
    ("answer", "gold"), [("18", "18.00"), ("$1,018", "1018"), ("1/2", "0.5"), ("yes", "Yes")]
)
def test_equal_spellings_are_right_without_math_verify(
    answer: str, gold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mathematics, "has_math_verify", False)
    assert is_right(answer, gold) and not is_right(answer, gold + "1")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}"), ("2x+1", "1+2x"), (r"\{2,1\}", r"\{1,2\}")],
)
def test_math_verify_decides_the_rest(answer: str, gold: str) -> None:
    pytest.importorskip("math_verify")
    assert is_right(answer, gold)
    assert not is_right(answer, "17")


@pytest.mark.parametrize(
    ("answer", "gold", "settled"),
    [
        *(("18", "17", True), ("0.5", "1/2", True), ("-3", "4.25", True), ("x+1", "X+1", True)),
        *(("18", "x", True), ("1/3", "0.33", True), ("x+1", "1+x", False)),
        *(("evil", "live", True), ("5 am", "5 pm", True), ("(1, x+1)", "(1, 1+x)", False)),
    ],
)
def test_numbers_need_no_opinion(
    answer: str, gold: str, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_settled(answer, gold) == settled
    monkeypatch.setattr(mathematics, "has_math_verify", True)
    used = equality_used([("1", "2"), (answer, gold)])
    assert used is None if settled else used is not None and "then by math-verify" in used
    monkeypatch.setattr(mathematics, "has_math_verify", False)
    used = equality_used([(answer, gold)])
    assert used is None if settled else used is not None and "not installed" in used


def test_numbers_never_reach_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "has_math_verify", True)
    monkeypatch.setattr(mathematics, "is_same", lambda answer, gold: pytest.fail("asked"))
    assert not is_right("18", "17.5") and is_right("18.0", "$18")


def pairs(name: str) -> list[tuple[str, str, bool]]:
    lines = (Path(__file__).parent / name).read_text("utf-8").splitlines()
    return [(case["answer"], case["gold"], case["right"]) for case in map(json.loads, lines)]


@pytest.mark.parametrize("name", ["equality.jsonl", "pairs.jsonl"])
def test_answers_are_equal_where_a_careful_person_says_so(name: str) -> None:
    pytest.importorskip("math_verify")
    wrong = [(a, b, right) for a, b, right in pairs(name) if is_right(a, b) != right]
    assert not wrong
    settled = [(a, b, right) for a, b, right in pairs(name) if is_settled(a, b)]
    assert not [(a, b) for a, b, right in settled if is_right(b, a) != right]


def test_the_examples_of_the_page_are_equal_or_not_as_it_says() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "answers.md").read_text("utf-8")
    rows = re.findall(r"^\| [\w, ]+ \| (`.+?) \| (`.+?) \|$", page, re.M)
    assert len(rows) == 9
    for columns in rows:
        for column, right in zip(columns, (True, False), strict=True):
            for one, other in re.findall(r"`([^`]+)` and `([^`]+)`", column):
                assert is_right(one, other) == right, (one, other)


def test_what_is_not_equal_is_not_counted_as_one() -> None:
    """But for signs of currencies, per cent and degrees, which counting leaves out."""
    for name in ("equality.jsonl", "pairs.jsonl"):
        for answer, gold, right in pairs(name):
            if not right and not set("$€£%°") & set(answer + gold):
                assert normalise(answer) != normalise(gold), (answer, gold)


def test_words_are_never_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "is_same", lambda answer, gold: pytest.fail("asked"))
    words = ("evil", "live", "on", "no", "5 am", "10/02/1943", "3-5", "3:4", "5 km", "a word of 3")
    for one in words:
        for other in (*words, "x + 1", "-2"):
            assert is_right(one, other) == (one == other)


def test_a_vote_of_shuffled_letters_is_wrong_in_every_sample() -> None:
    path = Path(__file__).parent / "anagram.jsonl"
    votes = tally(read(path))
    assert len(votes) == 5 and not any(vote.right_samples or vote.correct for vote in votes)


BOMBS = ["((((((9!)!)!)!)!)!", "9^{9^{9^{9}}}+x", "(1+x)^{100000}", "\\sum_{k=1}^{10^9} k^k"]


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_formula_that_takes_too_much_is_told_and_costs_one_comparison(
    bomb: str, short: None, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("math_verify")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with caplog.at_level(logging.WARNING):
        assert not is_right(bomb, "1+x")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # 64 MiB
    assert all("they count as different" in record.message for record in caplog.records)
    assert is_right("x+1", "1+x")


def test_a_comparison_that_is_given_up_is_told(
    short: None, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("math_verify")
    assert not is_right("9^{9^{9^{9}}}", "x+3")
    assert "'9^{9^{9^9}}' and 'x+3'" in caplog.text and "takes more than" in caplog.text


@pytest.mark.turn(3)
@pytest.mark.parametrize(
    ("answer", "gold"), [("я" * 2**24, "x+1"), ("x+1" * 2**22, "1+x"), ("\\boxed{" * 2**21, "1+x")]
)
def test_texts_of_16_mib_are_compared_by_their_hash(answer: str, gold: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert not is_right(answer, gold) and is_right(answer, answer)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # 128 MiB
    assert len(normalise(answer)) < 100 and normalise(normalise(answer)) == normalise(answer)


def test_answers_that_nobody_wrote_take_no_time(caplog: pytest.LogCaptureFixture) -> None:
    started = time.process_time()
    for answer in ("(" * 5000, "x" * 10**5, "1+" * 2000 + "1", "$" * 9000, "\\text{" * 1000):
        assert not is_right(answer, "x + 1")
    for answer in (
        "1," * 4000,
        "{" * 4000 + "}" * 4000,
        "1 " * 4000,
        "9" * 400 + "!!",
        "9" * 5000 + ":1",
    ):
        assert not is_right(answer, "{1, 2}")
    assert time.process_time() - started < 4
    assert not caplog.records


alphabet = st.sampled_from(
    ["1", "5", "x", "+", "=", ",", "(", ")", "{", "}", "\\frac", " km", "$", "%"]
)
texts = st.lists(alphabet, max_size=10).map("".join)


@settings(max_examples=60, deadline=None)
@given(texts, texts)
@example("1=", "1=1")
def test_equality_has_no_direction_and_holds_of_itself(one: str, other: str) -> None:
    assert is_right(one, one)
    assert is_right(one, other) == is_right(other, one)


@given(st.integers(-(10**9), 10**9), st.integers(-3, 3))
def test_whole_numbers_are_told_apart_as_what_may_be_a_date_or_a_quantity_is(
    number: int, more: int
) -> None:
    one, other = str(number), str(number + more)
    assert is_right(one, other) == equality._is_right(one, other) == (more == 0)
    asked: list[str] = []
    equality._equal(one, other, lambda answer, gold: asked.append(answer) is None)
    assert is_settled(one, other) and not asked
