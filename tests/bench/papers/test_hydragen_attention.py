"""One layer by each way: all give the same, and every point has its numbers."""

from __future__ import annotations

import torch

from sharegen.bench.attention_case import Case
from sharegen.bench.layer import Layer
from sharegen.bench.papers.experiment import Settings
from sharegen.bench.papers.hydragen_attention import Sweep, charts, measure

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
    first, second = charts(rows)
    assert [len(series.points) for chart in (first, second) for series in chart.series] == [2, 2]
