"""A whole job in a model's folder that holds a module for every name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import save_tiny_model
from tests.traps import Traps

pytestmark = pytest.mark.slow

RECIPE = r"""
description: A template and a pattern that take a process to work out
dataset: {source: rows.jsonl, fields: {question: question, answer: answer}}
prompt: "{% for time in range(2) %}{{ question }} {% endfor %}"
answer: {patterns: ['([0-9]+)(?![0-9])'], gold: {field: answer, pattern: '(?:(?:x|y)+ )?([0-9]+)'}}
sampling:
  samples: 3
  max_tokens: 12
  structured_outputs: {regex: '#### [0-9]{1,3}'}
"""


@pytest.mark.parametrize("how", [["--workers", "2"], ["--tensor-parallel-size", "2"], []])
def test_nothing_of_it_runs(how: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_tiny_model(folder)
    traps = Traps(folder)
    rows = [{"question": f"Tom has {n}", "answer": f"x {n}"} for n in range(4)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.yaml").write_text(RECIPE)
    script = tmp_path / "sharegen"  # as pip writes it
    script.write_text("import sys\nfrom sharegen.__main__ import main\nsys.exit(main())\n")
    words = [sys.executable, str(script), "run", "./recipe.yaml", "--model", ".", "-q", *how]
    ran = subprocess.run(
        [*words, "--device", "cpu", "-o", str(tmp_path / "out.jsonl")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 12
    assert traps.sprung == []
