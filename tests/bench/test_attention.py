"""One layer's attention as a measurement: its cases, its numbers, its errors."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks.papers.pat_trees import Levels
from sharegen.bench.attention import SWEEPS, charts
from sharegen.bench.attention_case import TABLE, Case, Tree
from sharegen.bench.attention_tensors import Tensors
from sharegen.bench.cascade import levels_of
from sharegen.cli import main
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.decode import decode_attention
from sharegen.results.report import figures

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL = Case(4, 2, 40, 20, 3, 2, 17, head_size=32)
on_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA GPU")


def test_floors_are_those_of_the_table() -> None:
    floors = [134, 535, 68, 177, 281, 88, 351, 12, 24]
    assert [case.floor for case in TABLE] == pytest.approx(floors, rel=0.04)


DEEP = Levels(4, 2, (2, 2, 4, 4), (20, 5, 33), 17, head_size=32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [SMALL, replace(SMALL, few=0), replace(SMALL, problem=0), replace(SMALL, suffix=0), DEEP],
    ids=str,
)
@pytest.mark.turn(5)
def test_a_case_computes_its_tree(case: Tree) -> None:
    tensors = Tensors(case, DEVICE, dtype=torch.float16)
    plan = AttentionPlan(tensors.shape, case.rows, DEVICE)
    plan.update(tensors.layout)
    decode_attention(*tensors.inputs(plan), scale=tensors.scale, out=tensors.out)
    assert tensors.error() < 3e-3
    tensors.out[0] += 1
    assert tensors.error() > 0.5


def test_levels_cover_the_tree() -> None:
    tensors = Tensors(SMALL, torch.device("cpu"))
    (root, root_lengths, root_blocks), (rows, lengths, blocks) = levels_of(tensors)
    assert (root.tolist(), root_lengths.tolist()) == ([0, 6], [40])
    assert (rows.tolist(), lengths.tolist()) == ([0, 2, 4, 6], [20, 20, 20])
    assert root_blocks.tolist() + blocks.tolist() == tensors.layout.blocks.tolist()


def test_draws_the_sweeps(tmp_path: Path) -> None:
    def entry(case: Case) -> dict:
        times = {"sharegen": 2 * case.floor, "torch": 9 * case.floor, "flashinfer": None}
        return {**asdict(case), "floor": case.floor, "microseconds": times}

    sweeps = {name: [entry(case) for case in cases] for name, cases in SWEEPS.items()}
    pictures = charts(sweeps)
    assert [picture.name for picture in pictures] == list(SWEEPS)
    assert {row[0] for picture in pictures for row in picture.rows} == {
        "sharegen", "torch", "floor",
    }  # fmt: skip
    [drawn] = figures.save(pictures, tmp_path / "a.svg")
    assert drawn.read_text().count("microseconds a layer") == len(SWEEPS)


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
    code, _, err = run(["--no-sweeps", "--plot", "a.svg"], capsys)
    assert code == 2 and "--no-sweeps" in err


@pytest.mark.parametrize("idle", [["--sweeps"], ["--no-sweeps"], ["--plot", "a.svg"]])
def test_refuses_what_a_fit_does_not_do(
    idle: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(["--fit", *idle], capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "--fit" in err and idle[0] in err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a.nothing", "must end in .svg"),
        ("a", "must end in .svg"),
        ("none/a.svg", "a folder that is there"),
        ("folder.svg", "must be a file"),
    ],
)
def test_refuses_a_picture_before_it_measures(
    name: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.svg").mkdir()
    code, out, err = run(["--plot", str(tmp_path / name)], capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert name in err and why in err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("32/8,1024,112,26x40", "is not of the form Q/KV,PREFIX,"),
        ("4/2,0,0,1,8", "is not of the form Q/KV,PREFIX,"),
        ("4/2,9,0,1x4,1234567890123", "is not of the form Q/KV,PREFIX,"),
        ("5/2,9,0,1x4,8", "5 query heads do not divide among 2 KV heads: Q must be a multiple"),
        ("4/0,9,0,1x4,8", "KV is 0: it must be at least 1"),
        ("4/2,9,-1,1x4,8", "PROBLEM is -1: it must be at least 0"),
        ("4/2,9,0,0x4,8", "PROBLEMS is 0: it must be at least 1"),
        ("4/2,9,0,1x0,8", "SAMPLES is 0: it must be at least 1"),
        ("4/2,0,0,1x4,0", "PREFIX, PROBLEM and SUFFIX are 0: there is nothing to attend to"),
    ],
)
def test_refuses_a_case_that_contradicts_itself(
    text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(["--case", "4/2,9,0,1x4,8", "--case", text], capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert text in err and why in err


def test_refuses_a_case_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--case", "32/32,1000000000,0,1x1,1"], capsys)
    assert (code, out) == (1, "")
    assert "take fewer rows or shorter lengths" in err.splitlines()[-1]


@pytest.mark.parametrize("idle", [["--fit"], ["--sweeps"], ["--no-sweeps"], ["--plot", "a.svg"]])
def test_refuses_what_a_case_does_not_do(
    idle: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(["--case", "4/2,9,0,1x4,8", *idle], capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "--case" in err and idle[0] in err


def test_measures_cases_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--case", "4/2,40,20,3x2,17", "--case", "8/1,0,0,1x4,5"], capsys)
    assert code == 0 and out.count("\n") == 1, err
    first, second = json.loads(out)["cases"]
    assert (first["few"], first["problem"], first["problems"], first["samples"]) == (40, 20, 3, 2)
    assert first["operations"] == 4 * 6 * 4 * 128 * 77
    for entry in (first, second):
        assert entry["error"] < 0.01
        for peer in ("sharegen", "each row", "torch"):
            assert entry["microseconds"][peer] > 0
    assert err.count("flashinfer") == 1  # its column, or why there is none


@on_gpu
def test_measures_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--no-sweeps"], capsys)
    assert code == 0, err
    result = json.loads(out.splitlines()[-1])
    assert [entry["aim"] for entry in result["table"]] == [case.aim for case in TABLE]
    for entry in result["table"]:
        assert entry["error"] < 0.01 and 0 < entry["of_floor"] < 1.1
