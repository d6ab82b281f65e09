from __future__ import annotations

import operator
import os
import queue
import signal
import subprocess
import sys
import time

import psutil
import pytest

from sharegen.common import confined


def test_a_call_gives_what_the_function_gives() -> None:
    assert confined.call(operator.add, "a", "\ud83d") == "a\ud83d"
    assert confined.call(int, "ff", base=16) == 255
    assert confined.call(os.getpid) not in (os.getpid(), None)
    with pytest.raises(ZeroDivisionError):
        confined.call(operator.truediv, 1, 0)


def test_one_process_answers_all_calls_until_one_goes_over_its_limits(short: None) -> None:
    first = confined.call(os.getpid)
    assert confined.call(os.getpid) == first
    with pytest.raises(confined.Exceeded, match=r"takes more than 0\.3 s"):
        confined.call(pow, 9, 9**9)  # one operation, deaf to signals
    second = confined.call(os.getpid)
    assert second != first and not psutil.pid_exists(first)
    with pytest.raises(confined.Exceeded, match="takes more than 256 MiB of memory"):
        confined.call(operator.mul, "x", 2**30)
    assert confined.call(operator.mul, "x", 2**20) == "x" * 2**20


@pytest.mark.slow
def test_the_limits_are_of_each_call(short: None) -> None:
    for _ in range(3):
        confined.call(sum, range(3_000_000))  # a third of the time
        confined.call(len, "x" * 2**27)  # what is handed over does not count


def test_a_process_that_answers_nothing_is_not_waited_for(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "_PATIENCE", 1)
    with pytest.raises(confined.Exceeded, match=r"takes more than 0\.3 s"):
        confined.call(time.sleep, 60)


def test_a_process_that_dies_is_named(short: None) -> None:
    with pytest.raises(confined.Exceeded, match=r"ended the process .*exit code -9"):
        confined.call(signal.raise_signal, signal.SIGKILL)
    assert confined.call(abs, -1) == 1


def test_a_stray_print_is_no_answer() -> None:
    assert confined.call(print, "hello") is None
    assert confined.call(abs, -2) == 2


def test_an_interrupted_call_leaves_no_answer_to_the_next(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    confined.prepare(abs)

    class Interrupted(queue.SimpleQueue):  # type: ignore[type-arg]
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

    assert confined._process is not None
    monkeypatch.setattr(confined._process, "_replies", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        confined.call(abs, -1)
    assert confined.call(abs, -2) == 2


def test_it_ends_with_the_one_who_asks() -> None:
    code = (
        "import os; from sharegen.common import confined; "
        "print(confined.call(os.getpid), flush=True); os.kill(os.getpid(), 9)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    asked = int(shown.stdout)
    for _ in range(100):
        if not psutil.pid_exists(asked) or psutil.Process(asked).status() == "zombie":
            return
        time.sleep(0.05)
    pytest.fail("it outlives who asked")
