from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from sharegen.errors import JournalError
from sharegen.job.interrupt import Interrupted, interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_keyboard_interrupt(number: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), interrupts():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_what_is_held_is_finished_first() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts() as handler:
        with handler.held():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("inside")
        done.append("after")
    assert done == ["inside"]


def test_the_second_signal_ends_the_process_at_once() -> None:
    program = (
        "import os, signal, time\n"
        "from sharegen.job.interrupt import interrupts\n"
        "with interrupts():\n"
        "    try: os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"  # as `timeout` does it: still the first
        "        print('cleaning up', flush=True)\n"
        "        time.sleep(0.3)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print('never said', flush=True)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "cleaning up\n", "")


def test_an_interrupt_in_a_destructor_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    class Ends:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    hook, waited = sys.unraisablehook, False
    with pytest.raises(KeyboardInterrupt), interrupts():
        ends = Ends()
        del ends
        waited = True
        time.sleep(5)
    assert waited and sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_other_threads_leave_the_signals_alone() -> None:
    seen = []

    def work() -> None:
        with interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_what_a_library_makes_of_an_interrupt_is_still_one() -> None:
    """dill, asked for its version: No module named 'version'."""
    with pytest.raises(KeyboardInterrupt), interrupts():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise ModuleNotFoundError("No module named 'version'") from None


@pytest.mark.parametrize("error", [Interrupted("told"), JournalError("not written")])
def test_what_must_be_told_all_the_same(error: Exception) -> None:
    with pytest.raises(type(error)), interrupts():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None


def test_errors_without_an_interrupt_are_what_they_are() -> None:
    with pytest.raises(ValueError, match="wrong"), interrupts():
        raise ValueError("wrong")
