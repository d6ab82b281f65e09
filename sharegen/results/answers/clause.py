r"""Which number of a clause is meant: in "After 5 days Janet has 90 eggs" it is 90.

In this order: what stands in a box; the number at the head of an answer (head.py); the part that
follows from the rest ("since ..., she needs 5"); what follows the last `=`; what is bold; the last
number that says no circumstance ("in 5 days", "the 3 friends", "at $2 each", "Step 4") and stands
before any reason; the last number; a number in words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sharegen.results.answers import head, numerals, wording, words
from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.numerals import Numeral
from sharegen.results.answers.passage import Passage, Span
from sharegen.results.answers.reading import Reading

_ASIDE = re.compile(r"\([^()]*\)")
_BOLD = re.compile(
    r"\*\*(?=\S)(.+?)(?<=\S)\*\*|(?<!\w)__(?=\S)(.+?)(?<=\S)__(?!\w)"
    r"|\\(?:textbf|mathbf)\{([^{}]*)\}"
)
_ENUMERATOR = re.compile(r"[ \t]*(?:[-*+•>][ \t]+)*[*_]*\(?\d{1,2}[.):][*_]*[ \t]+(?=\S)")
_AMOUNT = re.compile(r"\s*(?:dollars?|cents?|euros?|pounds?|bucks|rupees)\b", re.IGNORECASE)
_ADJECTIVE = re.compile(
    r"-[A-Za-z]|(?:st|nd|rd|th)\b|\s(?:each|apiece)\b|\s(?:\w+\s)?(?:ago|later|earlier|from now)\b"
)
_NEAR = 40  # characters before a number that say what it counts
_IDLE_WORDS = ("1", "1/2")  # "one of them", "half of it"


def number_in(passage: Passage, span: Span, *, leads: bool) -> Reading | None:
    """The number that a clause says; the rule is left for the caller to name.

    leads: whether the clause is an answer, so that a number at its head is the one.
    """
    box = last_box(passage, span)
    if box is not None:
        return head.content_of(passage, Span(box.start, box.end))
    found = _numerals(passage.text, span)
    if not found:
        return _in_words(passage.text, span, leads)
    if leads:
        first = head.number_at(passage, found, span)
        if first is not None:
            return first
    else:
        span = Span(_main_part(passage.text, found, span), span.end)
        found = [numeral for numeral in found if numeral.start >= span.start]
    return (
        head.after_equals(passage, found, span)
        or _bold(passage.text, found, span)
        or _last(passage.text, _before_reason(passage.text, found, span), span).reading
    )


def _numerals(text: str, span: Span) -> list[Numeral]:
    """The numbers of a clause; a list's own (`3. Multiply`) is none, nor what stands aside."""
    found = list(numerals.numerals(text, span.start, span.end))
    enumerator = _ENUMERATOR.match(text, span.start, span.end)
    if enumerator is not None and any(n.start >= enumerator.end() for n in found):
        found = [n for n in found if n.start >= enumerator.end()]
    asides = [match.span() for match in _ASIDE.finditer(text, span.start, span.end)]
    outside = [n for n in found if not any(a <= n.start and n.end <= b for a, b in asides)]
    return outside or found


def _main_part(text: str, found: Sequence[Numeral], span: Span) -> int:
    """Where the part of a sentence begins that follows from the rest, if it has numbers."""
    begin = span.start
    condition = wording.SUBORDINATE.match(text, begin, span.end)
    if condition is not None and condition.end() <= found[-1].start:
        begin = condition.end()
    for follows in wording.FOLLOWS.finditer(text, begin, span.end):
        if follows.end() <= found[-1].start:
            begin = follows.end()
    return begin


def _bold(text: str, found: Sequence[Numeral], span: Span) -> Reading | None:
    for match in reversed(list(_BOLD.finditer(text, span.start, span.end))):
        inside = [n for n in found if match.start() <= n.start and n.end <= match.end()]
        if inside:
            return _last(text, inside, Span(*match.span())).reading
    return None


def _before_reason(text: str, found: Sequence[Numeral], span: Span) -> Sequence[Numeral]:
    """The numbers before a reason or a condition that follows the first of them."""
    takes = wording.TAKES.search(text, span.start, span.end)
    reasons = [match.start() for match in wording.REASON.finditer(text, span.start, span.end)]
    for reason in sorted([*reasons, *([takes.start("what")] if takes else [])]):
        before = [n for n in found if n.end <= reason]
        if before:
            return before
    return found


def _last(text: str, found: Sequence[Numeral], span: Span) -> Numeral:
    """The last number that says no circumstance, or the last."""
    telling = (n for n in reversed(found) if not _is_circumstance(text, n, span))
    return next(telling, found[-1])


def _is_circumstance(text: str, numeral: Numeral, span: Span) -> bool:
    """Whether a number says when, among how many or at what rate, or counts steps."""
    if _ADJECTIVE.match(text, numeral.end):
        return True
    before = text[max(span.start, numeral.start - _NEAR) : numeral.start]
    match = wording.CIRCUMSTANCE.search(before)
    if match is None:
        return False
    is_money = numeral.is_money or _AMOUNT.match(text, numeral.end) is not None
    return not (match["money"] and is_money)


def _in_words(text: str, span: Span, leads: bool) -> Reading | None:
    found = list(words.numerals(text, span.start, span.end))
    if leads and found and found[0].start <= head.begin_of(text, span):
        return found[0].reading
    found = [numeral for numeral in found if numeral.written not in _IDLE_WORDS]
    return _last(text, found, span).reading if found else None
