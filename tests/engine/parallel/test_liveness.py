"""Who is given up for silence, and who is not."""

from __future__ import annotations

import pytest

from sharegen.engine.parallel.bounds import VARIABLE, Bounds
from sharegen.engine.parallel.liveness import Liveness
from sharegen.engine.parallel.messages import Alive, Here
from sharegen.errors import UsageError

BOUNDS = Bounds(silence=3, start=5, step=10)


def test_silence_counts_from_the_last_sign_and_is_told() -> None:
    lives = Liveness[str](BOUNDS)
    for _ in range(20):
        lives.heard("lives", Alive(0))
        lives.heard("loads", Here())
        assert lives.listened(0.9, ["lives", "loads"]) == []
    heard = []
    for _ in range(4):
        lives.heard("lives", Alive(0))
        heard.append(lives.listened(1.0, ["lives", "loads"]))
    assert heard[:2] == [[], []]
    [[(who, why)]] = heard[2:3]
    assert who == "loads" and why.startswith("it gave no sign of life for 3 s")


def test_one_that_never_begins_has_longer() -> None:
    lives = Liveness[int](BOUNDS)
    heard = [lives.listened(1.0, [1]) for _ in range(6)]
    assert heard[:5] == [[]] * 5
    assert heard[5] == [(1, "it has not begun in 5 s")]


def test_a_step_that_does_not_end_though_the_process_lives() -> None:
    lives = Liveness[int](BOUNDS)
    lives.heard(1, Alive(9.5))
    assert lives.listened(0.1, [1]) == []
    lives.heard(1, Alive(10.5))
    assert lives.listened(0.1, [1]) == [(1, "one of its steps has not ended in 10 s: it hangs")]


def test_time_in_which_the_listener_was_stopped_counts_little() -> None:
    """Ctrl-Z for an hour: the workers, which are in groups of their own, have not been silent."""
    lives = Liveness[int](BOUNDS)
    lives.heard(1, Alive(0))
    assert lives.listened(3_600, [1]) == []
    assert lives.listened(3_600, [1]) == []


def test_who_has_left_is_forgotten() -> None:
    lives = Liveness[int](BOUNDS)
    lives.heard(1, Alive(100))
    lives.leave(1)
    assert lives.listened(1, []) == []


def test_one_that_loads_for_long_is_told_of_once() -> None:
    lives = Liveness[int](BOUNDS)
    late = []
    for _ in range(9):
        lives.heard(1, Alive(0))
        assert lives.listened(1.0, [1]) == []
        late.append(lives.newly_late(1.0, [1]))
    assert late == [[]] * 5 + [[1]] + [[]] * 3


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon", "1 m"])
def test_what_is_no_bound(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(UsageError, match=f"{VARIABLE} is '{text}': give seconds"):
        Bounds.of_environment()


def test_bounds_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Bounds.of_environment().silence == 120
    monkeypatch.setenv(VARIABLE, "7.5")
    bounds = Bounds.of_environment()
    assert bounds.silence < bounds.start < bounds.step and bounds.silence == 7.5
    monkeypatch.setenv(VARIABLE, "inf")
    lives = Liveness[int]()
    lives.heard(1, Alive(1e9))
    assert lives.listened(1, [1]) == []
