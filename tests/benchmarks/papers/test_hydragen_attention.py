"""One layer by each way: all give the same, and every point has its numbers."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers.experiment import Settings
from benchmarks.papers.hydragen_attention import Sweep, charts, measure
from sharegen.bench.attention_case import Case
from sharegen.bench.layer import Layer
from sharegen.errors import CapacityError

CPU = torch.device("cpu")


def test_each_way_computes_the_layer() -> None:
    for case in (
        Case(4, 2, 40, 20, 3, 2, 17, head_size=32),
        Case(4, 1, 33, 0, 1, 3, 0, head_size=16),
    ):
        layer = Layer(case, CPU, torch.float32)
        for step in (layer.read_once(), layer.read_by_each()):
            layer.tensors.out = torch.full_like(layer.tensors.q, float("nan"))
            step()
            assert layer.tensors.error() < 1e-5


def test_every_point_has_its_numbers() -> None:
    sweep = Sweep(((4, 2),), (1, 3), (20,), (0, 5), head_size=16)
    rows = list(measure(sweep, Settings(CPU, torch.float32, repeats=2)))
    assert [(row["batch"], row["suffix"]) for row in rows] == [(1, 0), (3, 0), (1, 5), (3, 5)]
    for row in rows:
        assert row["speedup"] == row["nothing_us"] / row["sharegen_us"] and row["each_us"] > 0
        assert max(row["error"], row["each_error"]) < 1e-5
    first, second = charts(rows)
    assert [len(series.points) for chart in (first, second) for series in chart.series] == [2, 2]


def test_a_batch_that_does_not_fit_is_halved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 16 rows that share 64 tokens of 128 bytes 8 fit, and 2 that share nothing."""
    monkeypatch.setattr("sharegen.bench.layer.room", lambda device: 30_000.0)
    sweep = Sweep(((2, 1),), (16,), (64,), (16,), head_size=16)
    [row] = measure(sweep, Settings(CPU, torch.float32, repeats=1))
    assert (row["batch"], row["nothing_batch"]) == (8, 2) and "speedup" not in row
    halved, apart = capsys.readouterr().err.splitlines()
    assert "a batch of 8 is tried" in halved
    assert "nothing shared: a batch of 8 does not fit" in apart and apart.endswith("one of 2 does")
    monkeypatch.setattr("sharegen.bench.layer.room", lambda device: 1.0)
    with pytest.raises(CapacityError):
        list(measure(sweep, Settings(CPU, torch.float32, repeats=1)))
