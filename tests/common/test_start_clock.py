from hypothesis import given
from hypothesis import strategies as st

from sharegen.common import start_clock
from sharegen.common.start_clock import PARTS, READING, StartClock, with_engine


class _Time:
    now = 5.0

    def __call__(self) -> float:
        return self.now


def _clock() -> tuple[StartClock, _Time]:
    time = _Time()
    return StartClock(time), time


def test_a_part_inside_another_is_counted_once():
    clock, time = _clock()
    clock.begin()
    time.now += 1
    with clock.part("imports"):
        time.now += 2
        with clock.part("weights"):
            time.now += 4
        time.now += 8
    time.now += 16
    clock.wait_for_first_sample()
    time.now += 32
    clock.end()
    time.now += 64
    assert clock.seconds() == {READING: 17, "imports": 10, "weights": 4, "first sample": 32}


@given(st.lists(st.sampled_from([*PARTS, None]), max_size=30))
def test_every_second_is_in_one_part(steps):
    clock, time = _clock()
    clock.begin()
    open_parts = []
    for name in steps:
        time.now += 1
        if name is not None:
            open_parts.append(clock.part(name))
            open_parts[-1].__enter__()
        elif open_parts:
            open_parts.pop().__exit__(None, None, None)
    clock.end()
    assert sum(clock.seconds().values()) == len(steps)


def test_a_start_that_is_measured_goes_on_and_the_next_one_is_measured_anew():
    clock, time = _clock()
    clock.begin()
    time.now += 1
    clock.begin()
    assert clock.seconds() == {READING: 1}
    clock.end()
    clock.begin()
    assert clock.seconds() == {READING: 0}


def test_parts_count_where_no_start_is_measured_as_in_a_worker():
    clock, time = _clock()

    @clock.part("weights")
    def load() -> None:
        time.now += 3

    load()
    time.now += 9
    clock.wait_for_first_sample()
    load()
    assert clock.seconds() == {"weights": 6}


def test_a_part_that_fails_ends():
    clock, time = _clock()
    clock.begin()
    try:
        with clock.part("weights"):
            time.now += 1
            raise ValueError
    except ValueError:
        time.now += 2
    assert clock.seconds() == {READING: 2, "weights": 1}


def test_the_end_within_a_part_ends_it():
    clock, time = _clock()
    clock.begin()
    with clock.part("weights"):
        clock.end()
        time.now += 1
    assert clock.seconds() == {READING: 0, "weights": 0}
    assert not clock.runs


def test_who_shows_parts_is_told_where_the_start_is():
    clock, _ = _clock()
    told = []
    clock.on_part = told.append
    clock.begin()
    with clock.part("imports"):
        pass
    clock.end()
    clock.begin()
    assert told == [READING, "imports", READING]


def test_a_worker_s_parts_are_taken_from_the_wait_for_it():
    driver = {"imports": 2.0, "starting workers": 5.0, "first sample": 1.0}
    slowest = {"weights": 3.0, "warming up": 1.0}
    assert with_engine(driver, slowest) == {
        "imports": 2, "weights": 3, "warming up": 1, "starting workers": 1, "first sample": 1,
    }  # fmt: skip


def test_what_engines_did_before_they_were_waited_for_took_no_time():
    driver = {"imports": 2.0, "starting workers": 5.0, "first sample": 1.0}
    early = with_engine(driver, {"imports": 9.0, "weights": 3.0, "warming up": 1.0})
    assert early == {"imports": 2 + 1, "weights": 3, "warming up": 1, "first sample": 1}
    assert sum(early.values()) == sum(driver.values())
    assert with_engine(driver, {"weights": 9.0}) == {"imports": 2, "weights": 5, "first sample": 1}


def test_the_process_has_one():
    assert isinstance(start_clock.START, StartClock)
