"""Swapping beside computing again: every size is measured, and what cannot be is said."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from benchmarks.commands import app
from sharegen.cli import main
from tests.tiny import save_tiny_model


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["preempt", *arguments], app)
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


@pytest.mark.slow
@pytest.mark.turn(10)
def test_single_samples_and_whole_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cpu = ["--shape", str(save_tiny_model(tmp_path)), "--device", "cpu", "--dtype", "float32"]
    job = ["--groups", "--block-size", "4", "--rows", "16", "--repeats", "1"]
    capsys.readouterr()
    code, out, table = run([*cpu, *job, "--length", "12"], capsys)
    assert code == 0, table
    result = json.loads(out)
    assert (result["bench"], result["rows"], result["samples"]) == ("preempt groups", 16, 8)
    assert len(table.splitlines()) == 1 + len(result["jobs"]) == 9
    ways = [(job["lost"], job["lengths"], job["unit"]) for job in result["jobs"]]
    assert ways == list(product(("again", "swapped"), ("learnt", "short"), ("sample", "request")))
    # The same tokens whoever makes room, and the more of it the less admission knows.
    assert len({job["tokens"] for job in result["jobs"]}) == 1
    by_way = dict(zip(ways, result["jobs"], strict=True))
    single, whole = (by_way["again", "short", unit] for unit in ("sample", "request"))
    assert by_way["again", "learnt", "sample"]["preempted"] < single["preempted"]
    assert single["preempted"] < whole["preempted"] and 0 < single["again"] < whole["again"]
    assert all(job["swapped_bytes"] == 0 for job in result["jobs"] if job["lost"] == "again")
    assert by_way["swapped", "short", "sample"]["preempted"] > 0

    code, _, error = run([*cpu, "--groups", "--length", "600"], capsys)
    assert code == 2 and "2,048 tokens of context: lengths may be up to 503" in error


def test_what_it_cannot_measure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(["--dtype", "int8"], capsys)
    assert (code, out) == (2, "") and "it must be bfloat16, float16 or float32" in error
    code, out, error = run(["--groups", "--rows", "8"], capsys)
    assert (code, out) == (2, "") and "--rows 8: --groups needs at least 16" in error
