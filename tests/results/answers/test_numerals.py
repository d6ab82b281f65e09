"""Numbers are found where a search of every place would find them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hypothesis import example, given
from hypothesis import strategies as st

from sharegen.results.answers import numerals as module
from sharegen.results.answers.numerals import PLAIN, Numeral, numerals


def everywhere(text: str) -> Iterator[Numeral]:
    """The numbers of a text, looked for at every place of it, one after the other."""
    at = 0
    while (match := module._SCAN.search(text, at, len(text))) is not None:
        at = max(match.end(), at + 1)
        sign = match["sign"] or match["comma_sign"]
        if sign and not module._is_sign(text, match.start(), sign):
            at = match.start() + len(sign)
        elif match.end() - match.start() <= module.MAX_LENGTH:
            yield module._with_comma(match) if match["comma"] else module._numeral(match)


PIECES = [
    *"0123456789", "12", "2024-05-01", "3.5", ".5", "1,000", "½", "²", "\\frac{1}{2}",
    "\\dfrac 12", "\\frac{", "}{", "}", "-", "+", "negative ", "minus ", "$", "US$", "\\$",
    "USD ", "Rs. ", "CA$",
    "€", "A$", "{}", "\\,", "\\ ", " ", "          ", "\n", "x", "_", "^", "abc", "is", "A", "C",
    "US", "million", "k", "/", " and ", "×", "10^4", "*", "**", "٣", ",", ".", ":", "(", "%",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
@example("1114")
@example("word " * 30 + "12 and " + "word " * 30)
@example("minus " + " " * 100 + "7")
@example("$" + "\\," * 60 + "7")
@example("US$ {} negative \\dfrac { -7} 3")
def test_numbers_are_those_of_a_search_of_every_place(text: str) -> None:
    plain = text.translate(PLAIN)
    assert list(numerals(plain, 0, len(plain))) == list(everywhere(plain))


@given(st.text(max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_a_part_of_a_text_is_read_alone(text: str, start: int, end: int) -> None:
    plain = text.translate(PLAIN)
    for found in numerals(plain, start, min(end, len(plain))):
        assert start <= found.start < found.end <= end
        assert re.search(r"\d|[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒]", plain[found.start : found.end])
