"""Right answers of mathematics."""

from __future__ import annotations

import time

import pytest

from sharegen.results.answers import equality
from sharegen.results.answers.equality import equality_used, is_right, is_settled


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


@pytest.mark.parametrize(
    ("answer", "gold", "settled"),
    [
        *(("18", "17", True), ("0.5", "1/2", True), ("-3", "4.25", True), ("x+1", "X+1", True)),
        *(("18", "x", False), ("1/3", "0.33", False), ("x+1", "1+x", False)),
    ],
)
def test_numbers_need_no_opinion(
    answer: str, gold: str, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_settled(answer, gold) == settled
    monkeypatch.setattr(equality, "has_math_verify", True)
    used = equality_used([("1", "2"), (answer, gold)])
    assert used is None if settled else used is not None and "then by math-verify" in used
    monkeypatch.setattr(equality, "has_math_verify", False)
    used = equality_used([(answer, gold)])
    assert used is None if settled else used is not None and "not installed" in used


def test_numbers_never_reach_math_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equality, "has_math_verify", True)
    monkeypatch.setattr(equality, "_verified", lambda answer, gold: pytest.fail("asked"))
    is_right.cache_clear()
    assert not is_right("18", "17.5") and is_right("18.0", "$18")
    is_right.cache_clear()


def test_answers_that_nobody_wrote_take_no_time(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("math_verify")
    started = time.monotonic()
    for answer in ("(" * 5000, "x" * 10**5, "1+" * 2000 + "1"):
        assert not is_right(answer, "x + 1")
    assert time.monotonic() - started < 4
    assert not is_right("9" * 400 + "!!", "x + 1")
    assert not caplog.records
