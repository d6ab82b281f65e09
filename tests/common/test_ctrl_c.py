"""Ctrl-C as the command begins and while it imports."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SAID = "sharegen: interrupted\n"

# As dill and its like: whatever happens in an import is taken for a module that is not there.
SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass
except:
    import version_of_another_name
"""
COMMAND = """
import sys
sys.path.append({folder!r})
from sharegen.common import ctrl_c
ctrl_c.quiet_imports()
import swallows
print("went on")
"""


def python(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=30, **more
    )  # type: ignore[call-overload, no-any-return]


def test_an_import_that_swallows_it(tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    ran = python("-c", COMMAND.format(folder=str(tmp_path)))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", SAID)


def test_one_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As in the background of a shell's script."""
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    ran = python(
        "-c",
        COMMAND.format(folder=str(tmp_path)),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "went on\n", "")


@pytest.mark.turn(4)
@pytest.mark.usefixtures("uncovered")
def test_the_first_tenths_of_a_second() -> None:
    """Wherever the command is: what it imports first takes its time."""
    words = [sys.executable, "-X", "importtime", "-m", "sharegen", "version"]
    for module in ("import_path", "| typing", "| json"):
        command = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=-1, text=True)
        assert command.stderr is not None
        for line in command.stderr:  # until something of the module was imported
            if module in line:
                break
        command.send_signal(signal.SIGINT)
        _, err = command.communicate(timeout=30)
        said = [line for line in err.splitlines() if not line.startswith("import time:")]
        assert command.returncode in (0, 130), err  # 0: it was done already
        assert said in ([], [SAID.strip()])


def test_a_second_one_as_python_leaves() -> None:
    program = (
        "import atexit, os, signal, sys\n"
        "from sharegen.common import ctrl_c\n"
        "ctrl_c.quiet_imports()\n"
        "ctrl_c.quiet_end()\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )
    ran = python("-c", program)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
