r"""The number with which an answer begins: 18 in `18 dollars for 9 eggs` and in `9 * 2 = 18`.

What is no number and no part of an equation stays as it stands: `2\sqrt{3}`, `(2, 3)`, `40-44`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from sharegen.results.answers import numerals, words
from sharegen.results.answers.numerals import Numeral
from sharegen.results.answers.passage import Passage, Span
from sharegen.results.answers.reading import Reading

_LEAD_IN = re.compile(
    r"(?:[\s*_:$~≈\"'`(\[>{=.]|\\[(\[,;:! ]|\\(?:text|mathrm|mathbf|textbf|approx|quad|left)\b"
    r"|(?:approximately|approx\.?|about|around|roughly|exactly|simply|just|only|still|thus"
    r"|therefore|hence|now|then|indeed|clearly|equal to|equals|a total of|the number|is|that|be"
    r"|to|between|from)\b,?"
    r"|-+(?=\s*[A-Za-z$*\"(]))*",
    re.IGNORECASE,
)
_EQUALS = re.compile(r"(?<![<>!≤≥\\])(?:=|≈|\\approx|\\equiv)")
_EQUALED = re.compile(r"\s*=")
_WORK = re.compile(r"[+*/×÷^]|\\(?:times|cdot|div)")
_OPERATOR = re.compile(
    r"[nxyz](?![A-Za-z])"  # 2x
    r"|\s*(?:x(?=\s*\d)|\*(?!\*)|[+/×÷π√]|\^(?!\s*\{?\s*\\?(?:circ|degree|°))|-\s*(?=[\d$(])"
    r"|\\(?:times|cdot|div|sqrt|pi|pm|frac|ln|log|sin|cos|tan)\b|!(?=\s*[$})+*/=-]))"
)
_CLAUSE_END = re.compile(r"[,;](?!\d)|\.(?=\s|$)|\n| because| since")
_EXPRESSION_END = re.compile(r"[,;](?!\d)|\.(?!\d)|\n|\$(?!\d)|\*\*|\\[)\]]|\s[A-Za-z]{2,}")
_COMMA = re.compile(r"\s*,\s*(?:and\s)?")
_TUPLE = re.compile(r"[(\[]\s*[^()\[\]\n=]{1,60},[^()\[\]\n=]{1,60}[)\]]")
_FORMULA = re.compile(r"\d|\\(?:pi|sqrt|infty|emptyset|varnothing)|[a-z]\s*[+*/^-]")


def begin_of(text: str, span: Span) -> int:
    """Where an answer begins, behind what says nothing: emphasis, brackets, "approximately"."""
    match = _LEAD_IN.match(text, span.start, span.end)
    return span.start if match is None else match.end()


def number_at(passage: Passage, found: Sequence[Numeral], span: Span) -> Reading | None:
    """The number at the head of an answer; found: all numbers in it."""
    text, begin = passage.text, begin_of(passage.text, span)
    pair = _TUPLE.match(text, begin - 1, span.end) if begin > span.start else None
    if pair is not None:
        return Reading(passage.raw[pair.start() : pair.end()], "", *pair.span())
    first = found[0]
    if first.start > begin:
        return None
    stop = _CLAUSE_END.search(text, first.end, span.end)
    clause = Span(first.end, span.end if stop is None else stop.start())
    inside = [n for n in found if n.start < clause.end]
    result = after_equals(passage, inside, clause)
    if result is not None:  # of `18 = 9 * 2` it is the side that is worked out
        is_turned = _EQUALED.match(text, first.end) and _WORK.search(result.answer)
        return first.reading if is_turned else result
    return (
        _range(text, found, begin, span)
        or _listed(text, found, span)
        or _expression(passage, first, span)
    )


def after_equals(passage: Passage, found: Sequence[Numeral], span: Span) -> Reading | None:
    """The first number, or expression, behind the last `=` that has one."""
    text = passage.text
    equals = [m for m in _EQUALS.finditer(text, *span) if m.end() <= found[-1].start]
    if not equals:
        return None
    after = next(n for n in found if n.start >= equals[-1].end())
    is_next = after.start <= begin_of(text, Span(equals[-1].end(), span.end))
    return _expression(passage, after, span) if is_next else after.reading


def content_of(passage: Passage, span: Span) -> Reading | None:
    """The number that a box holds; what is no number stays as it stands there."""
    text = passage.text
    begin = begin_of(text, span)
    equals = list(_EQUALS.finditer(text, begin, span.end))
    if equals:
        begin = begin_of(text, Span(equals[-1].end(), span.end))
    first = next(numerals.numerals(text, begin, span.end), None)
    if first is not None and first.start <= begin and not _continues(text, first, span):
        return first.reading
    in_words = words.value_of(text[begin : span.end].strip(" .}$"))
    if in_words is not None:
        return Reading(numerals.decimal(in_words), "", begin, span.end)
    raw = passage.raw[span.start : span.end].strip()
    return Reading(raw, "", *span) if _FORMULA.search(text, begin, span.end) else None


def _continues(text: str, first: Numeral, span: Span) -> bool:
    """Whether a number is only the beginning of an expression, a tuple or a list."""
    if _OPERATOR.match(text, first.end, span.end) or text[: first.start].endswith(("(", "[")):
        return True
    return re.match(r"\s*,\s*-?[\d\\.]", text[first.end : span.end]) is not None


def _range(text: str, found: Sequence[Numeral], begin: int, span: Span) -> Reading | None:
    """Return `40-44` for an answer that says "40 to 44" or "between 40 and 44"."""
    if len(found) < 2 or _OPERATOR.match(text, found[1].end, span.end):
        return None
    word = "and" if text[:begin].rstrip().lower().endswith("between") else "to"
    if text[found[0].end : found[1].start].strip() != word:
        return None
    written = f"{found[0].written}-{found[1].written}"
    return Reading(written, "", found[0].start, found[1].end)


def _listed(text: str, found: Sequence[Numeral], span: Span) -> Reading | None:
    """Return `2, 3` where an answer is nothing but numbers with commas."""
    if len(found) < 2 or text[found[-1].end : span.end].strip(" .*_$\n"):
        return None
    if not all(_COMMA.fullmatch(text, one.end, other.start) for one, other in pairwise(found)):
        return None
    written = ", ".join(numeral.written for numeral in found)
    return Reading(written, "", found[0].start, found[-1].end)


def _expression(passage: Passage, first: Numeral, span: Span) -> Reading:
    """A number, or the expression that it begins where that is not worked out."""
    text = passage.text
    if not _OPERATOR.match(text, first.end, span.end):
        return first.reading
    stop = _EXPRESSION_END.search(text, first.end, span.end)
    end = span.end if stop is None else stop.start()
    return Reading(passage.raw[first.start : end].strip(), "", first.start, end)
