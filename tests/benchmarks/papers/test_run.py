"""The command around the experiments: names, wrong usage, lines, table, picture."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.commands import app
from benchmarks.papers import registry
from benchmarks.papers.experiment import Column, Experiment, Figure, Paper, Row, Settings
from benchmarks.papers.run import bench_paper
from sharegen.cli import main
from sharegen.results.report.chart import Bars, Chart, Series

MODULES = Path(registry.__file__).parent
ROWS: list[Row] = [
    {"model": "a", "batch": 1, "speed": 1234.5, "spread": 0.25, "other": None},
    {"model": "b", "batch": 2048, "speed": None, "other": None},
]


def measured(settings: Settings) -> Iterator[Row]:
    yield from ROWS


def charts(rows: Sequence[Row]) -> list[Chart]:
    points = [(row["batch"], row["speed"]) for row in rows if row["speed"] is not None]
    both = (Series("sharegen", points), Series("peer", [(1, 10.0), (64, 2e5)], dashed=True))
    return [
        Chart("speed", "Speed & batch", "batch", "tokens/s", both, x_log=True, y_log=True),
        Chart("none", "Nothing", "batch", "tokens/s", (Series("sharegen", []),)),
        Bars("ways", "Ways", "minutes", [("one level", 3.0), ("two levels", 1.5)]),
    ]


EXPERIMENT = Experiment(
    paper=Paper("A paper", "0000.00000"),
    machine="one card",
    figures=(Figure("table 1", "batch 8", "3 tokens per second"),),
    columns=(
        Column("model", "model"),
        Column("batch", "batch"),
        Column("speed", "tokens/s", 1, "spread"),
        Column("other", "a peer"),
    ),
    rows=measured,
    charts=charts,
    peers=("torch", "no_such_peer"),
    takes=("shape",),
)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit:
        main(["paper", *arguments], app)
    captured = capsys.readouterr()
    return int(exit.value.code or 0), captured.out, captured.err


def test_every_experiment_has_its_name() -> None:
    here = {path.stem.replace("_", "-") for path in MODULES.glob("*.py") if "EXPERIMENT = " in
            path.read_text(encoding="utf-8")}  # fmt: skip
    assert here == set(registry.NAMES)
    fields = set(Settings.__dataclass_fields__)
    for name in registry.NAMES:
        experiment = registry.find(name)
        assert experiment.figures and experiment.columns and set(experiment.takes) <= fields


def test_lists_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([], capsys)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == list(registry.NAMES)
    _, out, _ = run(["--help"], capsys)
    assert all(line in out for line in registry.listing().splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hydragen"], "take one of hydragen-"),
        (["hydragen-attention", "--repeats", "0"], "'--repeats': it must be at least 1"),
        (["hydragen-attention", "--device", "cuda:7"], "cuda:7"),
        (["hydragen-attention", "--device", "abacus"], "abacus"),
        (["hydragen-attention", "--dtype", "int8"], "it must be auto, float32"),
        (["hydragen-attention", "--shape", "llama3-8b"], "takes no --shape"),
        (["hydragen-throughput", "--quick", "--tables"], "leave out --tables"),
        (["hydragen-throughput", "--shape", "llama3-8b", "--tables"], "none of --shape llama3-8b"),
        (["hydragen-attention", "--plot", "a.png"], "must end in .svg"),
        (["hydragen-attention", "--plot", "none/a.svg"], "a folder that is there"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert said in err


def test_lines_table_and_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.papers.run.find", lambda name: EXPERIMENT)
    picture = tmp_path / "a.svg"
    assert bench_paper("mine", picture, device="cpu", shape=("a",)) == ROWS
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [{key: line[key] for key in row} for line, row in zip(lines, ROWS, strict=True)] == ROWS
    assert all((line["bench"], line["name"], line["device"]) == ("paper", "mine", "cpu")
               for line in lines)  # fmt: skip
    remark, heading, first, second, paper, figure, written = err.splitlines()
    assert remark == "no_such_peer is not installed: its column is left out"
    assert "a peer" not in heading
    assert first.split() == ["a", "1", "1,234.5", "±", "0.2"]
    assert second.split() == ["b", "2,048", "-"]
    assert paper == "A paper (arXiv 0000.00000) gives, of one card:"
    assert figure == "  table 1: batch 8: 3 tokens per second"
    assert written == f"written: {picture}"
    drawn = picture.read_text(encoding="utf-8")
    assert drawn.startswith("<svg") and "Speed &amp; batch" in drawn and "two levels" in drawn


def test_what_was_measured_is_shown_whatever_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two ways measure the same points, and in the midst of the second one the card is gone."""

    def rows(settings: Settings) -> Iterator[Row]:
        yield from ({"model": "a", "batch": batch, "speed": 2.5} for batch in (1, 8))
        yield {"model": "a", "batch": 8, "other": 7}
        raise RuntimeError("an illegal memory access")

    experiment = Experiment(**{**vars(EXPERIMENT), "rows": rows, "point": ("model", "batch")})
    monkeypatch.setattr("benchmarks.papers.run.find", lambda name: experiment)
    picture = tmp_path / "a.svg"
    with pytest.raises(RuntimeError, match="illegal"):
        bench_paper("mine", picture, device="cpu")
    out, err = capsys.readouterr()
    assert [json.loads(line).get("other") for line in out.splitlines()] == [None, None, 7]
    assert "".join(err.split()).startswith(
        "no_such_peerisnotinstalled:itscolumnisleftoutmodelbatchtokens/sapeera12.5-a82.57Apaper"
    )
    assert picture.is_file()


def test_an_interrupt_leaves_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`timeout -s INT` interrupts twice; the second one comes while the first unwinds."""

    def rows(settings: Settings) -> Iterator[Row]:
        yield ROWS[0]
        try:
            os.kill(os.getpid(), signal.SIGINT)
            yield ROWS[1]
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    experiment = Experiment(**{**vars(EXPERIMENT), "rows": rows})
    monkeypatch.setattr("benchmarks.papers.run.find", lambda name: experiment)
    code, out, err = run(["mine"], capsys)
    assert (code, len(out.splitlines())) == (130, 1)
    assert "1,234.5" in err and "A paper" in err


def test_settings_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def rows(settings: Settings) -> Iterator[Row]:
        seen.append(settings)
        yield ROWS[0]

    experiment = Experiment(**{**vars(EXPERIMENT), "rows": rows})
    monkeypatch.setattr("benchmarks.papers.run.find", lambda name: experiment)
    bench_paper("mine", device="cpu", tables=None)
    bench_paper("mine", device="cpu", dtype="bfloat16", quick=True, repeats=7)
    cpu = torch.device("cpu")
    peers = frozenset({"torch"})
    assert seen == [
        Settings(cpu, torch.float32, False, 3, peers),
        Settings(cpu, torch.bfloat16, True, 7, peers),
    ]
