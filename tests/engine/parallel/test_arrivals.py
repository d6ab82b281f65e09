"""When what has arrived is admitted: at once where little comes, together where much decodes."""

from __future__ import annotations

from sharegen.engine.parallel.arrivals import is_time


def admissions(running: int, comes: int, steps: int) -> list[int]:
    """The samples admitted at each of so many steps, before each of which as many come."""
    found, waiting, since = [], 0, 8
    for _ in range(steps):
        waiting, since = waiting + comes, since + 1
        if is_time(waiting, running, since):
            found.append(waiting)
            waiting = since = 0
        else:
            found.append(0)
    return found


def test_what_comes_alone_is_admitted_at_once() -> None:
    assert is_time(1, 0, 1) and is_time(1, 1000, 9) and is_time(200, 1000, 1)


def test_what_comes_all_the_time_is_gathered() -> None:
    assert admissions(1000, 5, 17) == [5] + [0] * 7 + [40] + [0] * 7 + [40]


def test_few_that_decode_do_not_keep_others_waiting() -> None:
    assert admissions(16, 4, 5) == [4] * 5
