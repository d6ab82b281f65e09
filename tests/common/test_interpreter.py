"""A fresh interpreter: what it is handed, where it imports from, and how it learns of the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sharegen.common.interpreter import start_interpreter

PROGRAM = """
import os, signal, sys
assert os.getpgid(0) == os.getpid()  # Ctrl-C in the terminal is for others
import only_there
import json  # not the one of the current folder
os.write(int(sys.argv[1]), only_there.SAID)
assert os.read(0, 1) == b""
os.write(int(sys.argv[1]), b" bye")
"""


def test_it_has_a_descriptor_its_folders_and_a_standard_input_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "only_there.py").write_text("SAID = b'hello'\n")
    (tmp_path / "json.py").write_text("raise SystemExit('from the current folder')\n")
    monkeypatch.chdir(tmp_path)
    ours, theirs = os.pipe()
    process = start_interpreter(["-c", PROGRAM], theirs, [*filter(None, sys.path), str(folder)])
    os.close(theirs)
    assert os.read(ours, 100) == b"hello"
    assert process.stdin is not None
    process.stdin.close()
    assert os.read(ours, 100) == b" bye" and process.wait(30) == 0
    os.close(ours)
