"""Each case of a test that takes turns runs within ten days, and about as many on each of them."""

from __future__ import annotations

from tests.conftest import has_its_turn

NAMES = [f"tests/test_a.py::test_b[{i}]" for i in range(2_000)]


def test_every_case_has_its_turn_once_in_as_many_days() -> None:
    for days in range(1, 11):
        for name in NAMES[:100]:
            assert sum(has_its_turn(name, days, day) for day in range(739_000, 739_000 + days)) == 1


def test_each_day_has_about_as_many_cases() -> None:
    for day in range(739_000, 739_010):
        assert 140 < sum(has_its_turn(name, 10, day) for name in NAMES) < 260
