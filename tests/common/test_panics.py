"""A library's panic is a line, and what else is written to standard error stays."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
from tokenizers import Regex, pre_tokenizers

from sharegen.common.panics import panics_as_errors
from sharegen.errors import ModelError

CATASTROPHIC = pre_tokenizers.Split(Regex("(a+)+$"), "isolated")
TEXT = "a" * 60 + "!"


def test_a_panic_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(ModelError, match=r"^the tokenizer gives up: .*retry-limit-in-match over$"),
        panics_as_errors("the tokenizer"),
    ):
        CATASTROPHIC.pre_tokenize_str(TEXT)
    assert capfd.readouterr().err == ""
    os.write(2, b"said afterwards")
    assert capfd.readouterr().err == "said afterwards"


def test_what_else_is_said_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    with panics_as_errors("the tokenizer"):
        os.write(2, b"a warning\n")
    with pytest.raises(KeyboardInterrupt), panics_as_errors("the tokenizer"):
        os.write(2, b"another\n")
        raise KeyboardInterrupt
    assert capfd.readouterr().err == "a warning\nanother\n"


def test_standard_error_may_be_closed() -> None:
    program = (
        "import os\nfrom sharegen.common.panics import panics_as_errors\nos.close(2)\n"
        "with panics_as_errors('it'):\n    print('worked', flush=True)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=30)
    assert (ran.returncode, ran.stdout) == (0, b"worked\n")


def test_many_threads_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    """However they overlap, standard error is what it was."""

    def work(number: int) -> None:
        for _ in range(100):
            with panics_as_errors("it"):
                os.write(2, b".")

    threads = [threading.Thread(target=work, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.write(2, b"!")
    assert capfd.readouterr().err == "." * 400 + "!"
