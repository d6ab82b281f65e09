"""What processes that we start import, in a folder that lays traps."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharegen.common import confined
from sharegen.common.import_path import import_path
from sharegen.workload import template
from tests.traps import Traps


@pytest.fixture
def traps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Traps:
    monkeypatch.chdir(tmp_path)
    return Traps(tmp_path)


def test_templates_are_worked_out_without_the_current_folder(traps: Traps) -> None:
    confined.stop()
    program = "{% for word in words %}{{ word|upper }}{% endfor %}"
    assert template.render("prompt", program, {"words": ["a", "b"]}) == "AB"
    confined.stop()
    assert traps.sprung == []


@pytest.mark.parametrize("how", ["-m", "console"])
def test_the_command_itself(
    traps: Traps, how: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = tmp_path_factory.mktemp("bin") / "sharegen"  # as pip writes it
    script.write_text("import sys\nfrom sharegen.__main__ import main\nsys.exit(main())\n")
    words = {"-m": ["-m", "sharegen"], "console": [str(script)]}[how]
    command = [sys.executable, *words, "recipes", "list"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ran.returncode == 0, ran.stderr
    assert "self-consistency" in ran.stdout and traps.sprung == []


def test_what_python_puts_first_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own script in the current folder, whose modules workers import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for here in (str(tmp_path), ""):
        monkeypatch.setattr(sys, "path", [here, "/usr/lib/python3", "/elsewhere"])
        assert import_path() == ["/usr/lib/python3", "/elsewhere", str(tmp_path)]


@pytest.mark.parametrize("named", ["{here}", "/elsewhere:{here}", "."])
def test_what_the_user_names_keeps_its_place(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", named.format(here=tmp_path))
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/usr/lib/python3"])
    assert import_path() == [str(tmp_path), "/usr/lib/python3"]


def test_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", "/usr/lib/python3"])
    assert import_path() == ["/usr/lib/python3"]
    os.chdir(tmp_path)
