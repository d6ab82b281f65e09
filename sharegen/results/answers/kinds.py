"""What an answer is besides a number: a time, a date, a range, a list, an equation.

Each function gives what two texts of the kind can be compared by, or None for another text. Texts
are in plain characters (`normal.plain`).
"""

from __future__ import annotations

import re
from datetime import date
from fractions import Fraction

from sharegen.results.answers import numerals

_TIME = re.compile(
    r"(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d))?(?::(?P<second>[0-5]\d))?"
    r"(?:\s?(?P<half>[ap])\.?\s?m\.?|\s?o'?clock)?",
    re.IGNORECASE,
)
_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            ("january", "jan"), ("february", "feb"), ("march", "mar"), ("april", "apr"), ("may",),
            ("june", "jun"), ("july", "jul"), ("august", "aug"), ("september", "sep", "sept"),
            ("october", "oct"), ("november", "nov"), ("december", "dec"),
        ),
        start=1,
    )
    for name in names
}  # fmt: skip
_DATES = (
    re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})"),
    re.compile(r"(?P<name>[a-z]+)\.? (?P<day>\d{1,2})(?:st|nd|rd|th)?,? (?P<year>\d{4})", re.I),
    re.compile(
        r"(?P<day>\d{1,2})(?:st|nd|rd|th)?(?: of)? (?P<name>[a-z]+)\.?,? (?P<year>\d{4})", re.I
    ),
    re.compile(r"(?P<one>\d{1,2})[-/.](?P<two>\d{1,2})[-/.](?P<year>\d{4}|\d{2})"),
)
_END = r"[$€£]?\d[\d,.]*%?"
_RANGE = re.compile(
    rf"(?:from )?(?P<low>{_END})(?:\s?-\s?| to )(?P<high>{_END})"
    rf"|between (?P<least>{_END}) and (?P<most>{_END})",
    re.IGNORECASE,
)
_RATIO = re.compile(r"\d+(?:\.\d+)?(?:\s?:\s?\d+(?:\.\d+)?)+")
_NAME = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?|')?(?:\s?\([a-z]\))?|[A-Za-z]+(?: [A-Za-z]+){1,4}")
_ENDS = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}


def time(text: str) -> tuple[int, str | None] | None:
    """Seconds of a day, and its half (a or p) where it is named."""
    match = _TIME.fullmatch(text)
    if match is None or not (match["minute"] or match["half"] or "clock" in text.lower()):
        return None
    hour, half = int(match["hour"]), match["half"] and match["half"].lower()
    if hour > 23 or (half and not 1 <= hour <= 12):
        return None
    if half:
        hour = hour % 12 + 12 * (half == "p")
    elif hour > 12 or hour == 0:
        half = "p" if hour >= 12 else "a"
    return hour * 3600 + int(match["minute"] or 0) * 60 + int(match["second"] or 0), half


def same_time(one: tuple[int, str | None], other: tuple[int, str | None]) -> bool:
    """Whether two times are the same, by twelve hours where one names no half of the day."""
    if one[1] and other[1]:
        return one[0] == other[0]
    return (one[0] - other[0]) % 43200 == 0


def dates(text: str) -> set[date] | None:
    """The days that a date can mean; 1/2/2024 can mean two."""
    for pattern in _DATES:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        parts = match.groupdict()
        year = int(parts["year"])
        if "one" in parts:
            one, two = int(parts["one"]), int(parts["two"])
            return _days(year, (one, two), (two, one))
        month = _MONTHS.get(parts["name"].lower()) if "name" in parts else int(parts["month"])
        return None if month is None else _days(year, (month, int(parts["day"])))
    return None


def _days(year: int, *months_and_days: tuple[int, int]) -> set[date]:
    found = set()
    for month, day in months_and_days:
        try:
            found.add(date(year, month, day))
        except ValueError:
            continue
    return found


def limits(text: str) -> tuple[Fraction, Fraction] | None:
    """The ends of a range: 10-12, 10 to 12, between 10 and 12."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    low = numerals.value_of(match["low"] or match["least"])
    high = numerals.value_of(match["high"] or match["most"])
    return None if low is None or high is None else (low, high)


def ratio(text: str) -> tuple[Fraction, ...] | None:
    """The terms of a ratio, the last being 1: 6:8 is 3:4."""
    if len(text) > numerals.MAX_LENGTH or not _RATIO.fullmatch(text):
        return None
    terms = [Fraction(term.strip()) for term in text.split(":")]
    return tuple(term / terms[-1] for term in terms) if terms[-1] else None


def items(text: str) -> tuple[str, list[str]] | None:
    r"""What brackets a list has (`()`, `[)`, `{}` or none), and what stands in it."""
    begin = next((b for b in ("\\{", "(", "[", "{") if text.startswith(b)), "")
    end = next((e for e in ("\\}", ")", "]", "}") if text.endswith(e)), "")
    if bool(begin) != bool(end) or "\\begin" in text or "|" in text:
        return None
    inside = text[len(begin) : len(text) - len(end)] if begin else text
    parts = _split(inside)
    if parts is None or (len(parts) < 2 and begin not in ("{", "\\{")):
        return None
    return begin[-1:] + end[-1:], parts


_PART = re.compile(r"\\[{}]|[()\[\]{},;]|\s(?:and|or)\s")


def _split(text: str) -> list[str] | None:
    """What stands between the commas that are in no bracket; None where brackets do not match."""
    parts, start, depth = [], 0, 0
    for match in _PART.finditer(text):
        mark = match[0][-1]
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0 and text[match.start() - 1 : match.end() + 1] != "{,}":
            parts.append(text[start : match.start()].strip())
            start = match.end()
    parts.append(text[start:].strip())
    parts = [part for part in parts if part]
    return parts if depth == 0 else None


def equation(text: str) -> tuple[str, str] | None:
    """The name and what it equals, of `x = 5`; None for any other text."""
    sides = [side.strip() for side in text.split("=")]
    if len(sides) != 2 or not all(sides) or sides[0][-1] in "<>!:≤≥":
        return None
    if all(_NAME.fullmatch(side) for side in sides):
        return None
    for name, rest in (sides, sides[::-1]):
        if _NAME.fullmatch(name):
            return name.strip("\\"), rest
    return None
