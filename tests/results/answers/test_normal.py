"""Answers: found by pattern, counted as one where surely equal and only there."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sharegen.errors import UsageError
from sharegen.results.answers.normal import normalise
from sharegen.results.answers.patterns import find


def extract(text: str, patterns: list[str], which: Literal["first", "last"] = "last") -> str | None:
    found = find(text, patterns, which)
    assert found is None or text[found.start : found.end].strip() == found.answer
    return found and found.answer


GSM8K = r"####\s*(-?[$]?[0-9][0-9,.]*)"


def test_the_last_match_counts_unless_the_first_is_asked_for() -> None:
    text = "6 + 12 = 18\n#### 18\n\nQ: another\n#### 20"
    assert extract(text, [GSM8K]) == "20"
    assert extract(text, [GSM8K], which="first") == "18"


def test_the_first_pattern_that_finds_anything_decides() -> None:
    patterns = [GSM8K, r"answer is (\S+)", r"-?\d+"]
    assert extract("The answer is 7. #### 8", patterns) == "8"
    assert extract("The answer is 7, not 8", patterns) == "7,"
    assert extract("7 or 8", patterns) == "8"  # without a group all of it counts
    assert extract("none", patterns) is None
    assert extract("anything", []) is None


def test_the_group_that_took_part_counts() -> None:
    assert extract("B)", [r"(?:\((\w)\)|(\w)\))"]) == "B"


def test_nothing_found_is_no_answer() -> None:
    assert extract("####   \nend", [r"####(.*)"]) is None
    assert extract("#### 18\n####  ", [r"####(.*)"]) == "18"
    assert extract("A: ", [r"A:(.*)", r"\w"]) == "A"


def test_a_pattern_that_is_none_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match=r"answer pattern '\(': missing \)"):
        extract("text", ["("])


ONE_ANSWER_EACH = {
    "18": [
        *("18", "18.", "18.0", "18.00", "018", "+18", "+ 18", "18,", "１８", "\u00a018", " 18\n"),
        *("$18", "$ 18", "$18.00", "18$", "$18$", "\\$18", "18€", "18 €", "£18", "18°"),
        *("18%", "18 %", "18\\%", "**18**", "'18'", "“18”", "`18`."),
        *("36/2", "17 2/2", "\\frac{36}{2}", "1.8e1", "180e-1"),
    ],
    "1018": ["1,018", "1018", "$1,018.00", "1,018.", "+1,018"],
    "-18": ["-18", "−18", "–18", "-$18", "$-18", "- 18", "-18.0", "－18", "-36/2", "-17 1/1"],
    "0": ["0", "-0", "0.0", ".0", "0/5", "-0.00", "0%", "00"],
    "0.5": ["0.5", ".5", "1/2", "2/4", "\\frac{1}{2}", "\\dfrac{2}{4}", "5e-1", "$.50", "1 / 2"],
    "1.5": ["1.5", "1 1/2", "3/2", "1.50"],
    "1/3": ["1/3", "2/6", "\\frac{1}{3}", "100/300"],
    "-1/3": ["-1/3", "−2/6"],
    "1234567.89": ["1,234,567.89", "1234567.890"],
    "0.333": ["0.333"],
    "1,01": ["1,01"],
    "1,2,3": ["1,2,3"],
    "1,0181": ["1,0181"],
    "1000": ["1 000", "1  000", "1{,}000", "1\\,000", "1'000", "1_000", "1\u202f000", "10^3"],
    "100000": ["1,00,000", "100,000", "1e5"],
    "0,500": ["0,500"],
    "5!": ["5!", "**5!**"],
    "5'": ["5'", "5\u2019"],
    '5"': ['5"', "5\u201d"],
    "21": ["twenty-one", "Twenty one", "21 (twenty-one)"],
    "9 apples": ["9 apples", "9 (apples)"],
    "\\frac{x}{2}": ["\\dfrac{x}{2}", "$\\tfrac{x}{2}$", "\\boxed{\\frac{x}{2}}"],
    "3-5": ["3-5", "3–5"],
    "--5": ["--5"],
    "-$-5": ["-$-5"],
    "1/0": ["1/0"],
    "0/0": ["0/0"],
    "5 am": ["5 am", "5 AM", " 5  am."],
    "5 pm": ["5 pm"],
    "5 cents": ["5 cents"],
    "5 dollars": ["5 dollars"],
    "12:30": ["12:30"],
    "1/2/2020": ["1/2/2020"],
    "paris": ["Paris", "paris.", " PARIS ", "**Paris**", '"Paris."', "“Paris”"],
    "new york": ["New York", "new   york", "New\nYork"],
    "strasse": ["Straße", "STRASSE"],
    "(b)": ["(B)", "(b)."],
    "b": ["B", "b.", "*B*"],
    "": ["", " ", "...", "**", '""', "!?"],
}


@pytest.mark.parametrize("one", ONE_ANSWER_EACH)
def test_equal_answers_have_one_spelling_and_others_have_their_own(one: str) -> None:
    assert {spelling: normalise(spelling) for spelling in ONE_ANSWER_EACH[one]} == dict.fromkeys(
        ONE_ANSWER_EACH[one], one
    )


@pytest.mark.turn(3)
@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(alphabet=" +-−–$€%°.,/0123456789eE\\frac{}'\"*", max_size=12))
@example("..00")
def test_normalising_what_looks_like_numbers_twice_changes_nothing(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


decimals = st.integers(0, 12).flatmap(
    lambda places: st.decimals(-(10**9), 10**9, places=places)  # exact, however many places
)


@given(decimals, decimals)
def test_decimals_are_one_answer_exactly_when_they_are_equal(a: Decimal, b: Decimal) -> None:
    assert (normalise(f"{a:f}") == normalise(f"{b:f}")) == (a == b)


@given(decimals)
def test_every_way_to_write_a_decimal_is_one_answer(value: Decimal) -> None:
    one = normalise(f"{value:f}")
    assert Fraction(one) == Fraction(value)
    sign = "-" if value < 0 else ""
    for spelling in (
        f"{value:,f}",
        f"{value:f}%",
        f"{sign}${value.copy_abs():,f}",
        f" {value:+f} ",
    ):
        assert normalise(spelling) == one


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(1, 9))
def test_fractions_are_one_answer_in_any_terms(over: int, under: int, factor: int) -> None:
    one = normalise(f"{over}/{under}")
    assert normalise(f"{over * factor}/{under * factor}") == one
    assert Fraction(one) == Fraction(over, under)


@pytest.mark.parametrize("text", ["9" * 100_000, "1e999", "1e-999", "1e9999999", "1/" + "9" * 5000])
def test_no_number_is_too_long(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


def test_the_answers_of_gsm8k_are_numbers_that_survive() -> None:
    path = Path(__file__).resolve().parents[4] / "shared" / "data" / "gsm8k_test.jsonl"
    if not path.exists():
        pytest.skip("GSM8K is not here")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        gold = extract(row["answer"], [GSM8K])
        assert gold is not None
        assert Fraction(normalise(gold)) == Fraction(gold.replace(",", "").replace("$", ""))
    assert len(rows) == 1319
