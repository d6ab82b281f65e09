"""Generators that nobody finished, as the program ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import save_tiny_model

BEGIN = """
import atexit, threading, time
from sharegen.common.at_exit import closed_at_exit
from sharegen.errors import SharegenError

atexit.register(lambda: print("others end", flush=True))

@closed_at_exit
def numbers(error=None):
    try:
        yield from range(3)
    finally:
        print("closed", flush=True)
        if error is not None:
            raise error

one = numbers()
next(one)
"""


def ran(program: str) -> tuple[int, str, str]:
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_it_is_closed_before_what_it_needs_ends() -> None:
    assert ran(BEGIN) == (0, "closed\nothers end\n", "")


@pytest.mark.parametrize(
    "more",
    [
        "class Cycle: pass\ncycle = Cycle()\ncycle.itself, cycle.one = cycle, one\ndel one",
        "other = numbers(SharegenError('a worker is gone'))\nnext(other)\none.close()",
        "list(one)\nnumbers()",
    ],
)
def test_once_and_in_silence(more: str) -> None:
    code, out, err = ran(BEGIN + more)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "others end" and "closed" in out


def test_one_that_another_thread_is_in() -> None:
    program = (
        BEGIN
        + "at = closed_at_exit(lambda: (time.sleep(60) for _ in range(9)))()\n"
        + "threading.Thread(target=next, args=[at], daemon=True).start()\ntime.sleep(0.1)\n"
    )
    code, out, err = ran(program)
    assert (code, err) == (0, "") and out == "closed\nothers end\n"


@pytest.mark.slow
@pytest.mark.turn(3)
@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt", "sys.exit(3)"])
def test_a_stream_that_is_left(end: str, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    program = (
        "import sys\nfrom sharegen import LLM, SamplingParams\n"
        f"llm = LLM({str(folder)!r}, device='cpu', kv_cache_memory=1 << 20)\n"
        "stream = llm.stream(['a', 'b'], SamplingParams(n=4, max_tokens=40, ignore_eos=True))\n"
        f"next(stream)\n{end}\n"
    )
    code, _, err = ran(program)
    assert "Exception ignored" not in err and "NoneType" not in err
    assert code == {"": 0, "sys.exit(3)": 3}.get(end, code)
