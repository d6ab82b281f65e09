"""Processes beside the user's own: what they import, and that they end with who began them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sharegen.engine.parallel.early import begin
from tests.traps import Traps

ROOT = str(Path(__file__).parents[3])
DRIVER = """
import os, time
from sharegen.engine.parallel.early import begin

ours, theirs = os.pipe()
process = begin("tests.engine.parallel.busy", theirs)
print(os.read(ours, 100).decode(), flush=True)
time.sleep(30)
"""


def test_nothing_comes_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traps = Traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*filter(None, sys.path), ROOT])  # as a command has it
    ours, theirs = os.pipe()
    process = begin("tests.engine.parallel.imports_all", theirs)
    os.close(theirs)
    assert os.read(ours, 100) == b"1 5"
    assert process.wait(10) == 0 and traps.sprung == []


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it ends when it next listens")
def test_it_ends_with_a_driver_that_is_killed() -> None:
    """At once, whatever it computes."""
    words = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        assert driver.stdout is not None
        process = psutil.Process(int(driver.stdout.readline()))
        time.sleep(0.1)
        driver.kill()
    until = time.monotonic() + 1
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until
        time.sleep(0.01)
