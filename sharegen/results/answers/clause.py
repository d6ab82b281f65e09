r"""Which number of a clause is meant: of "After 5 days Janet has 90 eggs" it is 90.

In this order: what stands in a box; what follows the last `=`; what is bold; the first number, of a
clause that is an answer and begins with one; the last number that says no circumstance ("in 5
days", "the 3 friends", "at $2 each", "Step 4"); the last number; a number in words.
"""

from __future__ import annotations

import re
from itertools import pairwise

from sharegen.results.answers import numerals, wording, words
from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.numerals import Numeral
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.reading import Reading

_LEAD_IN = re.compile(
    r"(?:[\s*_:$~≈\"'`(\[>{=.]|\\[(\[,;:! ]|\\(?:text|mathrm|mathbf|textbf|approx|quad|left)\b"
    r"|(?:approximately|approx\.?|about|around|roughly|exactly|simply|just|only|still|thus"
    r"|therefore|hence|now|then|indeed|clearly|equal to|equals|a total of|the number|is|that|be"
    r"|to|between|from)\b,?"
    r"|-+(?=\s*[A-Za-z$*\"(]))*",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"\([^()]*\)")
_EQUALS = re.compile(r"(?<![<>!≤≥\\])(?:=|≈|\\approx|\\equiv)")
_BOLD = re.compile(
    r"\*\*(?=\S)(.+?)(?<=\S)\*\*|(?<!\w)__(?=\S)(.+?)(?<=\S)__(?!\w)"
    r"|\\(?:textbf|mathbf)\{([^{}]*)\}"
)
_ENUMERATOR = re.compile(r"[ \t]*(?:[-*+•>][ \t]+)*[*_]*\(?\d{1,2}[.):][*_]*[ \t]+(?=\S)")
_AMOUNT = re.compile(r"\s*(?:dollars?|cents?|euros?|pounds?|bucks|rupees)\b", re.IGNORECASE)
_ADJECTIVE = re.compile(
    r"-[A-Za-z]|(?:st|nd|rd|th)\b|\s(?:each|apiece)\b|\s(?:\w+\s)?(?:ago|later|earlier|from now)\b"
)
_OPERATOR = re.compile(
    r"[nxyz](?![A-Za-z])|\s*(?:x(?=\s*\d)|\*(?!\*)|[+/×÷]|\^(?!\s*\{?\s*\\?(?:circ|degree|°))|-\s*(?=[\d$(])"
    r"|\\(?:times|cdot|div|sqrt|pi|pm|frac|ln|log|sin|cos|tan)\b|π|√"
    r"|!(?=\s*[$})+*/=-]))"
)
_LIST = re.compile(r"(?:\s*,\s*(?:and\s)?)")
_TUPLE = re.compile(r"[(\[]\s*[^()\[\]\n=]{1,60},[^()\[\]\n=]{1,60}[)\]]")


def number_in(passage: Passage, start: int, end: int, *, leads: bool) -> Reading | None:
    """The number that a clause says; the rule is left for the caller to name.

    leads: whether the clause is an answer, so that a number at its head is the one.
    """
    text = passage.text
    box = last_box(passage, start, end)
    if box is not None:
        return content_in(passage, box.start, box.end)
    found = _numerals(passage, start, end)
    if not found:
        return _in_words(passage, start, end, leads)
    if not leads and (later := _main_part(text, found, start, end)) > start:
        return number_in(passage, later, end, leads=False)
    equals = [m for m in _EQUALS.finditer(text, start, end) if m.end() <= found[-1].start]
    head = _LEAD_IN.match(text, start, end)
    begin = start if head is None else head.end()
    if leads and (lone := _leading(passage, found, begin, end)) is not None:
        return lone
    if equals and (after := [n for n in found if n.start >= equals[-1].end()]):
        head = _LEAD_IN.match(text, equals[-1].end(), end)
        begin = equals[-1].end() if head is None else head.end()
        if after[0].start <= begin:
            return _expression(passage, after[0], end)
        return _reading(after[0])
    bold = list(_BOLD.finditer(text, start, end))
    for match in reversed(bold):
        inside = [n for n in found if match.start() <= n.start and n.end <= match.end()]
        if inside:
            return _reading(_last(text, inside, match.start()))
    return _reading(_last(text, _before_reason(text, found, start, end), start))


def content_in(passage: Passage, start: int, end: int) -> Reading | None:
    """The number that a box holds; what is no number stays as it stands there."""
    text = passage.text
    head = _LEAD_IN.match(text, start, end)
    begin = start if head is None else head.end()
    equals = list(_EQUALS.finditer(text, begin, end))
    if equals:
        begin = equals[-1].end()
        begin = match.end() if (match := _LEAD_IN.match(text, begin, end)) else begin
    found = [n for n in _numerals(passage, begin, end) if n.start <= begin]
    if found and not _continues(text, found[0], end):
        return _reading(found[0])
    inside = words.value_of(text[begin:end].strip(" .}$"))
    if inside is not None:
        return Reading(numerals.decimal(inside), "", begin, end)
    if not re.search(
        r"\d|\\(?:pi|sqrt|infty|emptyset|varnothing)|[a-z]\s*[+*/^-]", text[begin:end]
    ):
        return None
    raw = passage.raw[start:end].strip()
    return Reading(raw, "", start, end) if raw else None


def _continues(text: str, found: Numeral, end: int) -> bool:
    """Whether a number is only the head of an expression, a tuple or a list."""
    rest = text[found.end : end]
    if _OPERATOR.match(rest):
        return True
    return bool(re.match(r"\s*,\s*-?[\d\\.]", rest)) or text[: found.start].endswith(("(", "["))


def _numerals(passage: Passage, start: int, end: int) -> list[Numeral]:
    """The numbers of a clause; a list's own (`3. Multiply`) is none, nor what stands aside."""
    text = passage.text
    enumerator = _ENUMERATOR.match(text, start, end)
    begin = start
    if enumerator is not None and any(True for _ in numerals.numerals(text, enumerator.end(), end)):
        begin = enumerator.end()
    found = list(numerals.numerals(text, begin, end))
    asides = [match.span() for match in _ASIDE.finditer(text, begin, end)]
    outside = [n for n in found if not any(a <= n.start and n.end <= b for a, b in asides)]
    return outside or found


def _leading(passage: Passage, found: list[Numeral], begin: int, end: int) -> Reading | None:
    """The number at the head of an answer, with the equation that it may begin."""
    text = passage.text
    match = _TUPLE.match(text, max(begin - 1, 0), end) if text[begin - 1 : begin] in "([" else None
    if match is not None and begin:
        return Reading(passage.raw[match.start() : match.end()], "", *match.span())
    first = found[0]
    if first.start > begin:
        return None
    stop = re.compile(r"[,;](?!\d)|\.(?=\s|$)|\n| because| since").search(text, first.end, end)
    clause_end = end if stop is None else stop.start()
    equals = list(_EQUALS.finditer(text, first.end, clause_end))
    after = [n for n in found if equals and equals[-1].end() <= n.start < clause_end]
    if after:  # of `18 = 9 * 2` it is the side that is worked out
        turned = _OPERATOR.match(text, after[0].end, end) and text[first.end : equals[-1].start()]
        return (
            _reading(first)
            if turned and not turned.strip()
            else _expression(passage, after[0], end)
        )
    return (
        _range(passage, found, begin, end)
        or _listed(passage, found, end)
        or _expression(passage, first, end)
    )


def _range(passage: Passage, found: list[Numeral], begin: int, end: int) -> Reading | None:
    """`40-44` of an answer that says "40 to 44" or "between 40 and 44"."""
    text = passage.text
    if len(found) < 2 or _OPERATOR.match(text, found[1].end, end):
        return None
    word = "and" if text[:begin].rstrip().lower().endswith("between") else "to"
    if text[found[0].end : found[1].start].strip() != word:
        return None
    written = f"{found[0].written}-{found[1].written}"
    return Reading(written, "", found[0].start, found[1].end)


def _listed(passage: Passage, found: list[Numeral], end: int) -> Reading | None:
    """`2, 3` where a clause is nothing but numbers with commas."""
    text = passage.text
    for one, other in pairwise(found):
        if not _LIST.fullmatch(text, one.end, other.start):
            return None
    if len(found) < 2 or text[found[-1].end : end].strip(" .*_$\n"):
        return None
    written = ", ".join(n.written for n in found)
    return Reading(written, "", found[0].start, found[-1].end)


def _expression(passage: Passage, first: Numeral, end: int) -> Reading:
    """A number, or the expression that it begins where that is not worked out."""
    text = passage.text
    if not _OPERATOR.match(text, first.end, end):
        return _reading(first)
    stop = re.compile(r"[,;](?!\d)|\.(?!\d)|\n|\$(?!\d)|\*\*|\\[)\]]|\s[A-Za-z]{2,}").search(
        text, first.end, end
    )
    until = end if stop is None else stop.start()
    raw = passage.raw[first.start : until].strip()
    return Reading(raw, "", first.start, until)


def _main_part(text: str, found: list[Numeral], start: int, end: int) -> int:
    """Where the part of a sentence begins that follows from the rest, if it has numbers."""
    begin = start
    condition = wording.SUBORDINATE.match(text, start, end)
    if condition is not None and condition.end() <= found[-1].start:
        begin = condition.end()
    for follows in wording.FOLLOWS.finditer(text, begin, end):
        if follows.end() <= found[-1].start:
            begin = follows.end()
    return begin


def _before_reason(text: str, found: list[Numeral], start: int, end: int) -> list[Numeral]:
    """The numbers before a reason or a condition that follows the first of them."""
    takes = wording.TAKES.search(text, start, end)
    reasons = [match.start() for match in wording.REASON.finditer(text, start, end)]
    for reason in sorted([*reasons, *([takes.start("what")] if takes else [])]):
        before = [n for n in found if n.end <= reason]
        if before:
            return before
    return found


def _last(text: str, found: list[Numeral], start: int) -> Numeral:
    """The last number that says no circumstance, or the last."""
    for numeral in reversed(found):
        if not is_circumstance(text, numeral, start):
            return numeral
    return found[-1]


def is_circumstance(text: str, numeral: Numeral, start: int) -> bool:
    """Whether a number says when, among how many or at what rate, or counts steps."""
    if _ADJECTIVE.match(text, numeral.end):
        return True
    match = wording.CIRCUMSTANCE.search(text[max(start, numeral.start - 40) : numeral.start])
    if match is None:
        return False
    is_money = numeral.is_money or _AMOUNT.match(text, numeral.end) is not None
    return not (match["money"] and is_money)


def _in_words(passage: Passage, start: int, end: int, leads: bool) -> Reading | None:
    text = passage.text
    head = _LEAD_IN.match(text, start, end)
    found = list(words.numerals(text, start, end))
    if leads and found and head is not None and found[0].start <= head.end():
        return _reading(found[0])
    found = [n for n in found if n.written not in ("1", "1/2")]  # "one of them", "half of it"
    return _reading(_last(text, found, start)) if found else None


def _reading(numeral: Numeral) -> Reading:
    return Reading(numeral.written, "", numeral.start, numeral.end)
