"""math-verify (huggingface/Math-Verify), asked for what is mathematics alone, and within limits.

It reads any text as a formula, words as products of their letters; and ten characters can have it
compute for hours or take all memory. So a text is looked at first, and a process with limits makes
the comparison (common/confined.py).
"""

from __future__ import annotations

import importlib.util
import logging
import re

from sharegen.common import confined
from sharegen.common.log import log

LONGEST = 1_000
"""Characters; what is longer is no formula that anyone wrote as an answer."""

has_math_verify = importlib.util.find_spec("math_verify") is not None

if confined.is_inside() and has_math_verify:  # an import does not count against a call's limits
    import math_verify  # noqa: F401

_ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\s?\{[a-z]*matrix\}|\\(?:begin|end)\s?\{(?:cases|array)\}"
)
_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_FUNCTION = re.compile(
    r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|exp|sqrt|cbrt|pi|abs|max|min|mod|gcd|lcm|inf|oo|det"
)
_LETTERS = re.compile(r"[A-Za-z]+")
_ALLOWED = re.compile(r"[A-Za-z0-9\s+\-*/^_=<>≤≥≠|!.,:;()\[\]{}&'°%√π∞×÷·±∪∩∈∅θαβ²³]*")
_SIGNIFICANT = re.compile(r"[0-9+*/^_=<>≤≥≠|√π∞×÷·±∪∩∈∅²³]|\\[A-Za-z]")
_LONGEST_PRODUCT = 3  # letters in a row that can be variables, beside other signs of a formula


def is_mathematics(text: str) -> bool:
    """Whether a text is a formula and nothing else: no words, and more than a letter."""
    if len(text) > LONGEST or not _SIGNIFICANT.search(text):
        return False
    bare = _COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text))
    if not _ALLOWED.fullmatch(bare):
        return False
    for match in _LETTERS.finditer(bare):
        letters = match[0]
        if len(letters) > _LONGEST_PRODUCT and not _FUNCTION.fullmatch(letters.lower()):
            return False
        if len(letters) > 1 and not _FUNCTION.fullmatch(letters.lower()) and _is_word(bare, match):
            return False
    return True


def _is_word(text: str, match: re.Match[str]) -> bool:
    """Whether letters stand between spaces, with no operator next to them."""
    before, after = text[: match.start()], text[match.end() :]
    if (before and before[-1] != " ") or (after and after[0] != " "):
        return False
    signs = before.rstrip()[-1:], after.lstrip()[:1]
    return not any(sign and sign in "+-*/^=<>≤≥×÷·" for sign in signs)


_BASE = re.compile(r"(\d+)_\{?(\d+)\}?")  # a number, and the base that it is written in


def is_same(answer: str, gold: str) -> bool:
    """Whether math-verify finds the formulas equal; False if it fails or exceeds the limits.

    It does not look at the base of a number, which both have to give alike where both do.
    """
    bases, others = _BASE.findall(answer), _BASE.findall(gold)
    if bases and others and bases != others:
        return False
    try:
        confined.call(_import)  # which has the clock's patience for itself
        failure = confined.call(_compare, answer, gold)
    except confined.Exceeded as error:
        failure = str(error)
    if isinstance(failure, str):
        shown = f"{answer[:60]!r} and {gold[:60]!r}"
        log(f"comparing {shown} by math-verify {failure}: they count as different")
        return False
    return failure


def _import() -> None:
    """Import this module, and with it the library, in the process with limits."""


def _compare(answer: str, gold: str) -> bool | str:
    """Return, in the process with limits, the verdict, or how the library failed."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it tells all that it gives up on
    try:
        texts = (text.replace("∞", r"\infty") for text in (gold, answer))
        wanted, given = (parse(f"${text}$", parsing_timeout=None) for text in texts)
        same = verify(wanted, given, float_rounding=12, timeout_seconds=None)
        if same and "=" in gold:  # of an equation without a side it sees the other alone
            same = verify(given, wanted, float_rounding=12, timeout_seconds=None)
    except MemoryError:
        raise
    except Exception as error:  # whatever a formula makes the library do
        return f"ends in {type(error).__name__}"
    return bool(same)
