"""Completions of one prompt by each way, beside the paper's tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.experiment import Row, Settings
from benchmarks.papers.hydragen_tables import TABLES, cell
from benchmarks.papers.hydragen_throughput import (
    EXPERIMENT,
    FIGURES,
    Point,
    charts,
    measure,
    tables,
)
from sharegen.errors import CapacityError
from tests.engine.tiny_models import tiny_config

CPU = torch.device("cpu")


def table(folder: Path, points: list[Point], repeats: int) -> tuple[list[Row], list[Row]]:
    """The lines of the table, and the rows as they came."""
    settings = Settings(CPU, torch.float32, repeats=repeats)
    rows = list(measure([str(folder)], lambda shape: points, settings))
    lines: list[Row] = []
    for row in rows:
        EXPERIMENT.add(dict(row), lines)
    return lines, rows


def test_cells_of_the_paper() -> None:
    """Every line has five prefixes, and what shares nothing is nowhere above the ceiling."""
    assert sorted(number for number, _ in TABLES.values()) == [2, 3, 4, 5, 6, 7]
    for _, lines in TABLES.values():
        for hydragen, vllm, ceiling in lines.values():
            assert len(hydragen) == len(vllm) == 5
            assert all(value is None or value <= ceiling for value in hydragen)
    found = cell("codellama-13b", 1024, 16_256, 128)
    assert list(found.values()) == [14_000, 400, 18_500]
    assert cell("codellama-13b", 128, 1024, 256)["paper_hydragen"] is None
    assert cell("codellama-13b", 1024, 16_384, 128) == cell("tiny", 32, 1024, 128) == {}


def test_points_of_the_paper() -> None:
    assert {point.prefix for point in FIGURES if point.batch == 1024} == {
        1024, 2048, 4096, 8192, 16_256
    }  # fmt: skip
    assert len(tables("codellama-34b")) == (8 + 7) * 5
    assert set(tables("codellama-13b")) > {Point(1024, 16_256, 128), Point(512, 16_128, 256)}


def test_a_model_that_does_not_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.papers.fitting.memory_of_cpu", lambda: 1_000_000)
    with pytest.raises(CapacityError, match="no model fits"):
        list(measure(["tiny"], lambda shape: FIGURES, Settings(CPU, torch.float32)))
    assert "tiny is left out: its weights are 1," in capsys.readouterr().err


@pytest.mark.slow
def test_every_way_has_its_pace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_config("llama").save_pretrained(tmp_path)
    points = [Point(2, 20, 3), Point(5, 20, 3)]
    too_long = Point(2, tiny_config("llama").max_position_embeddings, 3)
    found, rows = table(tmp_path, [*points, too_long], repeats=2)
    assert len(rows) == 4 * len(points)  # as soon as one way has measured one of them
    assert [(row["batch"], row["prefix"], row["output"]) for row in found] == [
        (2, 20, 3),
        (5, 20, 3),
    ]
    for row in found:
        for way in ("sharegen", "each", "nothing", "ceiling"):
            assert row[way] > 0 and row[f"{way}_spread"] >= 0
        assert row["of_ceiling"] == row["sharegen"] / row["ceiling"]
    [chart] = charts(found)
    assert [len(series.points) for series in chart.series] == [2, 2, 2, 2, 0]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4 and all(line.count("is left out: it takes ") == 1 for line in lines)


@pytest.mark.slow
def test_says_the_largest_batch_that_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 8 prompts of 150 tokens that share nothing, a small KV cache holds few.

    A point of which the same batch fits is not measured again.
    """
    tiny_config("llama").save_pretrained(tmp_path)
    monkeypatch.setattr("sharegen.engine.execute.memory._CPU_MOST", 1 << 18)
    found, _ = table(tmp_path, [Point(8, 150, 2), Point(9, 150, 2)], repeats=1)
    row, more = found
    assert more["nothing"] == row["nothing"] and more["sharegen"] != row["sharegen"]
    said = capsys.readouterr().err
    assert "nothing shared, prefix 150: a batch of 8 does not fit" in said
    assert f"the largest that does is {row['nothing_batch']}" in said
    assert 0 < row["nothing_batch"] < 8 and "sharegen_batch" not in row
