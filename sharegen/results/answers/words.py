"""English number words: "eighteen", "one hundred and five", "two thirds", "half"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from sharegen.results.answers.numerals import Numeral, decimal

_UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = {"hundred": 100, "dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9}
_PARTS = {
    "half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7,
    "eighth": 8, "ninth": 9, "tenth": 10, "halve": 2,
}  # fmt: skip
_VALUES = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
_WORD = "|".join(sorted((*_VALUES, *_SCALES), key=len, reverse=True))
_DIGITS = "|".join(_UNITS[:10])
_PART = "|".join(sorted(_PARTS, key=len, reverse=True))
_NUMBER = re.compile(
    rf"(?<![\w-])(?:(?P<minus>minus|negative)\s)?"
    rf"(?:(?P<number>(?:an?\s(?=hundred|dozen|thousand|million|billion))?(?:{_WORD})s?"
    rf"(?:(?:\s|-|\sand\s)(?:{_WORD}))*)(?:[\s-](?P<part>{_PART})s?"
    rf"|[\s-]and[\s-]a[\s-](?P<more>half|third|quarter)"
    rf"|\spoint(?P<digits>(?:\s(?:{_DIGITS}))+))?"
    rf"|(?P<lone>half|an?\s(?:half|third|quarter)))(?![\w-])",
    re.IGNORECASE,
)


def numerals(text: str, start: int, end: int) -> Iterator[Numeral]:
    """Every number that stands in words in a part of a text."""
    for match in _NUMBER.finditer(text, start, end):
        value = _value(match)
        if value is not None:
            yield Numeral(*match.span(), value, _written(value, _is_part(match)))


def value_of(text: str) -> Fraction | None:
    """The value of a text that is a number in words and nothing else."""
    match = _NUMBER.fullmatch(text)
    return None if match is None else _value(match)


def _is_part(match: re.Match[str]) -> bool:
    """Whether it is written as a fraction."""
    return bool(match["part"] or match["lone"])


def _written(value: Fraction, is_part: bool) -> str:
    return str(value) if is_part else decimal(value)


def _value(match: re.Match[str]) -> Fraction | None:
    if match["lone"]:
        value = Fraction(1, _PARTS[match["lone"].lower().split()[-1]])
    else:
        whole = _sum(re.findall(_WORD, match["number"].lower()))
        if whole is None:
            return None
        value = Fraction(whole, _PARTS[match["part"].lower()] if match["part"] else 1)
        if match["more"]:
            value += Fraction(1, _PARTS[match["more"].lower()])
        for place, digit in enumerate((match["digits"] or "").lower().split(), start=1):
            value += Fraction(_VALUES[digit], 10**place)
    return -value if match["minus"] else value


def _sum(words: list[str]) -> int | None:
    """The value of words in a row; None where they are several numbers, as in "five six"."""
    total = group = 0
    last = 10**12
    for word in words:
        if word not in _SCALES:
            value = _VALUES[word]
            if value >= last or (last < 20) or (value >= 10 and last < 100):
                return None
            group, last = group + value, value
            last = value if value >= 20 else 1
        elif _SCALES[word] < 1000:
            group, last = max(group, 1) * _SCALES[word], 100
        else:
            total, group, last = total + max(group, 1) * _SCALES[word], 0, 10**12
    return total + group
