"""One layer's attention as a measurement: its cases, its numbers, its errors."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from sharegen.bench.attention import SWEEPS, _levels, draw
from sharegen.bench.attention_case import TABLE, Case, Tensors
from sharegen.cli import main
from sharegen.errors import UsageError
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.plan import Plan

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Case(4, 2, 40, 20, 3, 2, 17, head_size=32)
on_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA GPU")


def test_floors_are_those_of_the_table() -> None:
    floors = [134, 535, 68, 177, 281, 88, 351, 12, 24]
    assert [case.floor for case in TABLE] == pytest.approx(floors, rel=0.04)


@pytest.mark.parametrize("case", [SMALL, replace(SMALL, few=0), replace(SMALL, problem=0)], ids=str)
def test_a_case_computes_its_tree(case: Case) -> None:
    tensors = Tensors(case, DEVICE, dtype=torch.float16)
    plan = Plan(tensors.shape, case.rows, DEVICE)
    plan.update(tensors.layout)
    decode_attention(*tensors.inputs(plan), scale=tensors.scale, out=tensors.out)
    assert tensors.error() < 3e-3
    tensors.out[0] += 1
    assert tensors.error() > 0.5


def test_levels_cover_the_tree() -> None:
    tensors = Tensors(SMALL, torch.device("cpu"))
    (root, root_lengths, root_blocks), (rows, lengths, blocks) = _levels(tensors)
    assert (root.tolist(), root_lengths.tolist()) == ([0, 6], [40])
    assert (rows.tolist(), lengths.tolist()) == ([0, 2, 4, 6], [20, 20, 20])
    assert root_blocks.tolist() + blocks.tolist() == tensors.layout.blocks.tolist()


def test_draws_the_sweeps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def entry(case: Case) -> dict:
        times = {"sharegen": 2 * case.floor, "torch": 9 * case.floor, "flashinfer": None}
        return {**asdict(case), "floor": case.floor, "microseconds": times}

    sweeps = {name: [entry(case) for case in cases] for name, cases in SWEEPS.items()}
    draw(sweeps, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"a\.nothing"):
        draw(sweeps, tmp_path / "a.nothing")


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["bench", "attention", *arguments])
    captured = capsys.readouterr()
    return exit.value.code, captured.out, captured.err


@pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a GPU")
def test_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([], capsys)
    assert (code, out) == (1, "")
    [line] = err.splitlines()
    assert "no CUDA GPU" in line


def test_refuses_to_draw_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["--no-sweeps", "--plot", "a.png"], capsys)
    assert code == 2 and "--no-sweeps" in err


@pytest.mark.parametrize("idle", [["--sweeps"], ["--no-sweeps"], ["--plot", "a.png"]])
def test_refuses_what_a_fit_does_not_do(
    idle: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(["--fit", *idle], capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "--fit" in err and idle[0] in err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.nothing", "must end in .png"),
        ("a", "must end in .png"),
        ("none/a.png", "a folder that is there"),
        ("folder.png", "must be a file"),
    ],
)
def test_refuses_a_picture_before_it_measures(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "folder.png").mkdir()
    code, out, err = run(["--plot", str(tmp_path / name)], capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert name in err and why in err


@on_gpu
def test_measures_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--no-sweeps"], capsys)
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert [entry["aim"] for entry in result["table"]] == [case.aim for case in TABLE]
    for entry in result["table"]:
        assert entry["error"] < 0.01 and 0 < entry["of_floor"] < 1.1
