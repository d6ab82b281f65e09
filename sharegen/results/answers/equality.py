"""Whether an answer is right, for every command alike.

Answers are *counted* by spelling alone (normal.py). Whether one *equals the gold answer* is decided
by what both are: numbers by value, quantities with their units, times, dates, ranges, lists and
equations part by part, words by spelling; where both are formulas, by math-verify, if it is
installed (the extra `math`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeAlias

from sharegen.common.extras import install
from sharegen.results.answers import kinds, mathematics, numerals
from sharegen.results.answers.normal import LONGEST, WHOLE, normalise, unwrapped
from sharegen.results.answers.units import quantity

ByMathematics: TypeAlias = Callable[[str, str], bool]
"""What is asked whether one formula equals another."""

_MOST_ITEMS = 50  # of lists that are compared item by item
_CHOICE = re.compile(r"(?:(?i:option|choice|answer) )?[(\[]?([A-Za-z])[)\]]?[.:]?")
_CHOSEN = re.compile(r"\(?([A-Za-z])(?:\)[.:]?|[.:])\s+\S.*", re.DOTALL)
_EQUATES = re.compile(r"(?<![<>!])=")
_DECIMAL_COMMA = re.compile(r"-?(?:\d+,\d\d|0,\d+)")


def is_right(answer: str, gold: str) -> bool:
    """Whether an answer equals the gold answer."""
    if _are_whole(answer, gold):
        return answer == gold  # as all that follows would find, a hundred times as slowly
    if len(answer) > LONGEST or len(gold) > LONGEST:
        return normalise(answer) == normalise(gold)
    return _is_right(answer, gold)


@lru_cache(maxsize=100_000)
def _is_right(answer: str, gold: str) -> bool:
    return _equal(answer, gold, mathematics.is_same if mathematics.has_math_verify else _unknown)


def _are_whole(answer: str, gold: str) -> bool:
    return WHOLE.fullmatch(answer) is not None and WHOLE.fullmatch(gold) is not None


def is_settled(answer: str, gold: str) -> bool:
    """Whether it is decided without math-verify if they are equal."""
    if _are_whole(answer, gold):
        return True  # likewise
    asked: list[str] = []

    def ask(answer: str, gold: str) -> bool:
        asked.append(answer)
        return True  # so that what else there is to compare is looked at, too

    if max(len(answer), len(gold)) <= LONGEST:
        _equal(answer, gold, ask)
    return not asked


def equality_used(pairs: Iterable[tuple[str, str]]) -> str | None:
    """How (answer, gold) pairs were compared, in words; None where that needs no math-verify.

    That is the one case in which math-verify, installed or not, changes nothing.
    """
    if all(is_settled(answer, gold) for answer, gold in pairs):
        return None
    if mathematics.has_math_verify:
        return "answers are compared by value and spelling, formulas then by math-verify"
    return (
        "answers are compared by value and spelling alone, formulas too: math-verify is not "
        f"installed ({install('math')})"
    )


def _unknown(answer: str, gold: str) -> bool:
    """Judge formulas without math-verify: they are equal by spelling alone."""
    return False


def _equal(answer: str, gold: str, by_mathematics: ByMathematics) -> bool:
    one, other = unwrapped(answer), unwrapped(gold)
    for compare in (_as_times, _as_dates, _as_quantities, _as_ranges, _as_ratios, _as_choices):
        same = compare(one, other)
        if same is not None:
            return same
    if normalise(answer) == normalise(gold):
        return True
    for look_inside in (_as_equations, _as_lists):
        same = look_inside(one, other, by_mathematics)
        if same is not None:
            return same
    if bool(_EQUATES.search(one)) != bool(_EQUATES.search(other)):
        return False  # x + y = 5 is no 5
    are_formulas = mathematics.is_mathematics(one) and mathematics.is_mathematics(other)
    return are_formulas and by_mathematics(one, other)


def _as_times(answer: str, gold: str) -> bool | None:
    one, other = kinds.time(answer), kinds.time(gold)
    if one is not None and other is not None:
        return kinds.same_time(one, other)
    return None


def _as_dates(answer: str, gold: str) -> bool | None:
    one, other = kinds.dates(answer), kinds.dates(gold)
    if one is None and other is None:
        return None
    if one is None or other is None:
        return False
    return one == other and bool(one)


def _as_quantities(answer: str, gold: str) -> bool | None:
    """A number with or without a unit equals no text that is none."""
    one, other = quantity(answer), quantity(gold)
    if one is not None and other is not None:
        return one.equals(other)
    for comma, number in ((answer, other), (gold, one)):
        if number is not None and _DECIMAL_COMMA.fullmatch(comma):
            return numerals.value_of(comma.replace(",", ".")) == number.value
    return None


def _as_ranges(answer: str, gold: str) -> bool | None:
    one, other = kinds.limits(answer), kinds.limits(gold)
    if one is None and other is None:
        return None
    return one == other


def _as_ratios(answer: str, gold: str) -> bool | None:
    one, other = kinds.ratio(answer), kinds.ratio(gold)
    if one is None and other is None:
        return None
    return one == other


def _as_choices(answer: str, gold: str) -> bool | None:
    """Compare choices: `(B)` is `B`, and so is `B) Paris`."""
    letters = [_CHOICE.fullmatch(text) for text in (answer, gold)]
    chosen = [_CHOSEN.fullmatch(text) for text in (answer, gold)]
    for mine, others in ((0, 1), (1, 0)):
        letter, other = letters[mine], letters[others] or chosen[others]
        if letter is not None and other is not None:
            return letter[1].casefold() == other[1].casefold()
    return None


def _as_equations(answer: str, gold: str, by_mathematics: ByMathematics) -> bool | None:
    """Compare equations: `x = 5` is `x = 5.0`, and 5; it is no `y = 5`."""
    one, other = kinds.equation(answer), kinds.equation(gold)
    if one is None and other is None:
        return None
    if one is None or other is None:
        whole, part = (gold, answer) if one is None else (answer, gold)
        if "=" in part:
            return None
        named = kinds.equation(whole)
        assert named is not None
        return _equal(named[1], part, by_mathematics)
    if one[0].casefold() == other[0].casefold():
        return _equal(one[1], other[1], by_mathematics)
    has_names = all(re.search("[A-Za-z]", side[1]) for side in (one, other))
    return None if has_names else False  # y = x + 1 is x = y - 1


def _as_lists(answer: str, gold: str, by_mathematics: ByMathematics) -> bool | None:
    """Lists, item by item: in order in round and square brackets, in any order in others."""
    one, other = _items(answer), _items(gold)
    if one is None and other is None:
        return None
    if one is None or other is None:
        brackets, items = one or other  # type: ignore[misc]
        single = answer if one is None else gold
        if brackets == "{}" and len(items) == 1:
            return _equal(items[0], single, by_mathematics)
        return None if brackets and numerals.value_of(single) is None else False
    (brackets, items), (others_brackets, others) = one, other
    if len(items) != len(others) or len(items) > _MOST_ITEMS:
        return False
    if brackets != others_brackets and brackets and others_brackets:
        return False  # a set is no tuple, and an open end of an interval no closed one
    if {brackets, others_brackets} - {"", "{}"}:
        return all(_equal(a, b, by_mathematics) for a, b in zip(items, others, strict=True))
    left = list(others)
    for item in items:
        match = next((o for o in left if _equal(item, o, by_mathematics)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _items(text: str) -> tuple[str, list[str]] | None:
    return None if numerals.value_of(text) is not None else kinds.items(text)
