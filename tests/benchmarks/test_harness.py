"""lm-eval's tasks both ways: every one is answered by both models."""

from __future__ import annotations

import importlib.util
import json

import pytest

from benchmarks.commands import app
from benchmarks.harness import bench_harness
from sharegen.cli import main


@pytest.mark.slow
@pytest.mark.turn(10)
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs lm-eval")
def test_each_task_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    bench_harness(6, 4)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[:1] == "{"]
    assert [line["task"] for line in lines] == [
        "gsm8k_repeats", "gsm8k_same_examples", "choices_same_examples", "gsm8k_other_examples",
        "choices_other_examples",
    ]  # fmt: skip
    assert all(line["sharegen_seconds"] > 0 < line["hf_seconds"] for line in lines)


@pytest.mark.parametrize("arguments", [["--rows", "5"], ["--rows", "201"], ["--batch", "0"]])
def test_numbers_that_cannot_be(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["harness", *arguments], app)
    assert ended.value.code == 2 and "--" in capsys.readouterr().err
