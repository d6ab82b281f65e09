"""Right answers of mathematics, and the votes of a journal."""

from __future__ import annotations

import pytest

from sharegen.results import equality
from sharegen.results.equality import ballots, is_right
from sharegen.results.record import Record


@pytest.mark.parametrize(
    ("answer", "gold"), [("18", "18.00"), ("$1,018", "1018"), ("1/2", "0.5"), ("yes", "Yes")]
)
def test_equal_spellings_are_right_without_math_verify(
    answer: str, gold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equality, "has_math_verify", False)
    is_right.cache_clear()
    assert is_right(answer, gold) and not is_right(answer, gold + "1")
    is_right.cache_clear()


@pytest.mark.parametrize(
    ("answer", "gold"),
    [(r"\frac{\sqrt{8}}{2}", r"\sqrt{2}"), ("2x+1", "1+2x"), (r"\{2,1\}", r"\{1,2\}")],
)
def test_math_verify_decides_the_rest(answer: str, gold: str) -> None:
    pytest.importorskip("math_verify")
    assert is_right(answer, gold)
    assert not is_right(answer, "17")


def record(problem: str, sample: int, answer: str | None, gold: str | None = "4") -> Record:
    return Record(problem, sample, "h", "text", answer=answer, gold=gold)


def test_ballots_are_in_sample_order_with_their_verdicts() -> None:
    records = [
        record("a", 2, None),
        record("a", 0, "4.0"),
        record("a", 1, "5"),
        record("b", 0, "5", gold=None),
        Record("c", None, None, error="bad row"),
    ]
    assert ballots(records) == [(["4", "5", None], {"4": True, "5": False})]
