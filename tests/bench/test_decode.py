"""Whole jobs as a measurement: what is shared at each level, and where a step's time goes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sharegen.bench.breakdown import StepProfile, by_part
from sharegen.bench.decode import decode as run
from sharegen.bench.parts import PARTS
from sharegen.cli import main
from tests.engine.tiny_models import tiny_config


@pytest.fixture
def shape(tmp_path: Path) -> str:
    tiny_config("llama").save_pretrained(tmp_path)
    return str(tmp_path)


def decode(shape: str, load: str, **more: Any) -> dict[str, Any]:
    [result] = run(shape, [load], **more)
    return result


@pytest.mark.slow
def test_levels_change_what_is_computed_and_stored(shape: str) -> None:
    """Three problems of 20 tokens behind 40 that all share, four samples each."""
    tokens = {0: 12 * 60, 1: 40 + 12 * 20, 2: 40 + 3 * 20}
    for levels, computed in tokens.items():
        result = decode(
            shape, "40,20,3,4,6", levels=levels, device="cpu", dtype="float32", ceiling=False
        )
        assert result["prompt_tokens_computed"] == computed
        assert (result["rows"], result["tokens"]) == (12, 72)
        assert result["preemptions"] == 0
        assert result["steps_by_levels"] == {("", "0", "0 1")[levels]: 5}
        assert result["decode_steps"] == 5
        # The node of 20 tokens leaves 12 places empty, and all three levels end in part of a block.
        used = {0: 12 * 60, 1: 40 + 12 * 20, 2: 40 + 3 * 20}[levels] + 12 * 5
        blocks = {0: 12 * 4, 1: 3 + 12 * 2, 2: 3 + 3 * 2}[levels] + 12
        assert result["peak_kv_used_bytes"] / used == result["peak_kv_reserved_bytes"] / blocks / 16
        written = 5 * (used - 12 * 5) + 12 * (1 + 2 + 3 + 4 + 5)
        assert result["wasted_blocks"] == pytest.approx(1 - written / (5 * blocks * 16))
    apart = decode(
        shape, "40,20,3,4,6", read_by_each=True, device="cpu", dtype="float32", ceiling=False
    )
    assert (apart["prompt_tokens_computed"], apart["steps_by_levels"]) == (tokens[2], {"": 5})


@pytest.mark.slow
@pytest.mark.turn(3)
def test_paces_of_prefill_and_decoding(shape: str) -> None:
    result = decode(shape, "40,20,3,4,6", device="cpu", dtype="float32")
    prefill, decoding = result["prefill_seconds"], result["decode_seconds"]
    assert 0 < prefill + decoding < result["seconds"]
    assert result["prefill_tokens_per_second"] == pytest.approx(100 / prefill)
    assert result["decode_tokens_per_second"] == pytest.approx(12 * 5 / decoding)
    assert result["ceiling_decode_seconds"] > 0
    alone = decode(shape, "40,20,3,4,1", device="cpu", dtype="float32", ceiling=False)
    assert alone["decode_tokens_per_second"] == alone["decode_steps"] == 0


@pytest.mark.turn(6)
def test_workloads_on_one_engine(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line each, with the counts of each alone."""
    words = ["--shape", shape, "--workload", "40,20,3,4,20", "--workload", "8,8,2,1,3"]
    with pytest.raises(SystemExit) as exit:
        main(["bench", "decode", "--device", "cpu", "--dtype", "float32", "--no-compile", *words])
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert exit.value.code == 0 and first["start_seconds"] == second["start_seconds"]
    assert [(each["rows"], each["tokens"]) for each in (first, second)] == [(12, 240), (2, 6)]
    assert first["peak_kv_reserved_bytes"] > second["peak_kv_reserved_bytes"] > 0
    assert "ceiling_tokens_per_second" not in first
    assert len(first["runs_seconds"]) == 3
    assert first["seconds"] == sorted(first["runs_seconds"])[1]


def test_each_of_several_workloads_has_its_ceiling(shape: str) -> None:
    """Between which attention is there again: all runs of one workload draw the same tokens."""
    loads = ["40,20,3,4,6", "8,8,2,1,3"]
    found = list(run(shape, loads, device="cpu", dtype="float32"))
    assert all(each["ceiling_tokens_per_second"] > 0 for each in found)
    assert [each["steps_by_levels"] for each in found] == [{"0 1": 5}, {"": 2}]


@pytest.mark.parametrize("more", [["--largest"], ["--workers", "2"]])
def test_several_workloads_are_measured_alone(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--workload", "few", "--workload", "apps", *more]
    with pytest.raises(SystemExit) as exit:
        main(["bench", "decode", *words])
    assert exit.value.code == 2 and "several workloads: leave out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.turn(4)
def test_prints_one_json_line(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--shape", shape, "--workload", "40,20,3,4,6", "--max-sequences", "8"]
    with pytest.raises(SystemExit) as exit:
        main(["bench", "decode", "--device", "cpu", "--dtype", "float32", "--largest", *arguments])
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert exit.value.code == 0 and out.count("\n") == 1
    assert result["rows"] == 8 and result["largest_rows"] == result["fitting_rows"] == 12
    assert result["largest_mean_running"] == 12
    assert result["share_of_ceiling"] == pytest.approx(
        result["tokens_per_second"] / result["ceiling_tokens_per_second"]
    )
    assert "largest_tokens_per_second" in err


@pytest.mark.turn(3)
def test_largest_rows_are_those_that_run(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharegen.bench.decode.MOST_ROWS", 6)
    result = decode(
        shape, "40,20,3,4,6", max_sequences=2, device="cpu", dtype="float32", ceiling=False,
        largest=True,
    )  # fmt: skip
    assert (result["rows"], result["fitting_rows"], result["largest_rows"]) == (2, 12, 6)
    assert (result["mean_running"], result["largest_mean_running"]) == (2, 6)


def test_parts_of_a_step() -> None:
    """Two steps of 100 us, one before them that is not counted; attention on two streams."""
    kernels = [(0.0, 10.0, "gemm"), (90.0, 100.0, "_pick_kernel")]
    steps = (
        (100.0, "_store_kernel", "_merge_kernel"),
        (200.0, "_rotate_and_store_kernel", "_merge_rows_kernel"),
    )
    for begin, store, merge in steps:
        kernels += [
            (begin, begin + 40, "sm90_gemm"),
            (begin + 40, begin + 60, "_shared_kernel"),
            (begin + 45, begin + 70, "_suffix_kernel"),
            (begin + 70, begin + 75, merge),
            (begin + 80, begin + 82, store),
            (begin + 95, begin + 100, "_pick_kernel"),
        ]
    parts = by_part(kernels, 2)
    assert parts == pytest.approx(
        dict.fromkeys([f"{part}_ms" for part in PARTS], 0.0)
        | {"shared_ms": 0.020, "suffix_ms": 0.030, "store_ms": 0.002, "sampling_ms": 0.005,
           "products_ms": 0.040, "idle_ms": 0.018, "step_ms": 0.100}
    )  # fmt: skip
    assert by_part(kernels, 3) is None


@pytest.mark.turn(4)
def test_parts_of_a_step_on_a_cpu(shape: str) -> None:
    """Operators' own times, and what no operator took."""
    result = decode(shape, "40,20,3,4,40", device="cpu", dtype="float32", ceiling=False)
    parts = [result[f"{part}_ms"] for part in (*PARTS, "idle")]
    assert result["products_ms"] > 0 and result["attention_ms"] > 0
    assert sum(parts) >= result["step_ms"] * 0.999 > 0


class Steps:
    """A GPU's runner that does nothing."""

    device = torch.device("cuda")

    def decode(self, batch: Any) -> None:
        pass


class Profiler:
    """A profiler that sees nothing, and is started and stopped once."""

    runs = None

    def start(self) -> None:
        assert self.runs is None
        self.runs = True

    def stop(self) -> None:
        assert self.runs
        self.runs = False

    def events(self) -> None:
        return None


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        (0, "0 had all 9 rows, and it takes 38"),
        (8, "8 had all 9 rows, and it takes 38"),  # the next one would have started the profiler
        (37, "37 had all 9 rows, and it takes 38"),
        (40, "the trace has no 24 of them"),
    ],
)
def test_says_why_a_step_has_no_parts(
    steps: int,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.profiler.profile", lambda **_: Profiler())
    monkeypatch.setattr("torch.cuda.synchronize", lambda _: None)
    runner = Steps()
    engine: Any = SimpleNamespace(runner=runner)
    with StepProfile(engine, rows=9) as profile:
        for rows in [9, 10] * (steps // 2) + [9] * (steps % 2) + [8] * 50:
            runner.decode(SimpleNamespace(num_rows=rows))
    assert profile.milliseconds() == {} and vars(runner) == {}
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(why)
