"""When what has arrived is admitted: at once where little comes, together where much decodes."""

from __future__ import annotations

import pytest

from sharegen.engine.core.request import Request, SamplingParams
from sharegen.engine.parallel.arrivals import Arrivals, is_time
from sharegen.engine.parallel.messages import Work
from tests.engine.jobs import loaded, make_engine


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
    assert is_time(1, 0, 1) and is_time(1, 1000, 8) and is_time(200, 1000, 0)


def test_what_comes_all_the_time_is_gathered() -> None:
    assert admissions(1000, 5, 17) == [5] + [0] * 7 + [40] + [0] * 7 + [40]


def test_few_that_decode_do_not_keep_others_waiting() -> None:
    assert admissions(16, 4, 5) == [4] * 5


@pytest.mark.parametrize("lag", [0, 1])
def test_many_decode_between_two_admissions_of_few(lag: int) -> None:
    """Those whose prompt is in flight count, before any of them has a row."""
    engine = make_engine(loaded("llama"), block_size=4)
    engine._lag = lag
    engine.begin(arriving=True)
    arrivals, params = Arrivals(engine), SamplingParams(max_tokens=32, ignore_eos=True)

    def come(*keys: int) -> None:
        arrivals.come(Work([Request(key, [5, 6, 7, 8, 9 + key], params, range(1)) for key in keys]))

    decoded = []
    come(*range(20))
    for keys in ((20, 21), (22, 23), ()):
        while arrivals.wait:
            arrivals.admit()
            engine.step()
        decoded.append(engine.stats.decode_steps)
        come(*keys)
    assert decoded == [0, 8, 16]
    engine.end()
