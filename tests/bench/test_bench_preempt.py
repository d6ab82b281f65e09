"""Swapping beside computing again: every size is measured, and what cannot be is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sharegen.cli import main
from tests.tiny import save_tiny_model


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "preempt", *arguments])
    captured = capsys.readouterr()
    return exit.value.code, captured.out, captured.err


@pytest.mark.slow
def test_a_table_by_block_size_and_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = ["--shape", str(save_tiny_model(tmp_path)), "--device", "cpu", "--dtype", "float32"]
    sizes = ["--block-size", "4", "--block-size", "16", "--length", "3", "--length", "20"]
    capsys.readouterr()
    code, out, table = run([*cpu, *sizes, "--rows", "2", "--repeats", "1"], capsys)
    assert code == 0, table
    result = json.loads(out)
    assert (result["bench"], result["rows"], result["device"]) == ("preempt", 2, "cpu")
    assert len(table.splitlines()) == 1 + len(result["costs"]) == 5
    for costs in result["costs"]:
        ways = {
            "swap": costs["swap_out_ms"] + costs["swap_in_ms"],
            "one pass": costs["one_pass_ms"],
            "replay": costs["replay_ms"],
        }
        assert min(ways.values()) > 0 and min(ways, key=ways.__getitem__) == costs["cheapest"]
    measured = [(costs["block_size"], costs["tokens"]) for costs in result["costs"]]
    assert measured == [(4, 3), (4, 20), (16, 3), (16, 20)]

    code, _, error = run([*cpu, "--length", "3000"], capsys)
    assert code == 2 and "2,048 tokens of context: lengths may be up to 2,015" in error


def test_what_it_cannot_measure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(["--dtype", "int8"], capsys)
    assert (code, out) == (2, "") and "it must be bfloat16, float16 or float32" in error
