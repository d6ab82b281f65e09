"""Block sizes: what each wastes, and what samples and beams of one prompt save."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.experiment import Settings
from benchmarks.papers.paged_blocks import Sweep, Trace, charts, in_ranges, measure
from tests.engine.tiny_models import tiny_config


def test_a_stretch_for_each_is_mostly_empty() -> None:
    """Of a prompt of 1 token and an output of 1 that is never fed nothing is counted."""
    trace = Trace("long", 168, 348)
    row = in_ranges(trace, 50)
    assert sum(row.values()) == pytest.approx(100)
    assert row["used_percent"] < row["internal_percent"] < 100
    lengths = trace.lengths(20_000)
    for mean, which in ((168, 0), (348, 1)):
        assert sum(pair[which] for pair in lengths) / 20_000 == pytest.approx(mean, rel=0.05)


@pytest.mark.slow
def test_every_size_and_way_has_its_numbers(tmp_path: Path) -> None:
    tiny_config("llama").save_pretrained(tmp_path)
    trace = Trace("short", 60, 12, 200)
    sweep = Sweep(str(tmp_path), 400, (trace,), (4, 32), 4, (2,), 2)
    small, large, stretch, *shared = measure(
        sweep, Settings(torch.device("cpu"), torch.float32, repeats=1)
    )
    assert [row["block"] for row in (small, large, stretch)] == [4, 32, "200 each"]
    assert small["used_percent"] > large["used_percent"] > stretch["used_percent"]
    for row in (small, large):
        assert row["tokens_per_second"] > 0 and row["external_percent"] == 0
    kinds = ("used_percent", "ahead_percent", "internal_percent")
    for row in (small, large, stretch, *shared):
        assert sum(row[kind] for kind in kinds) == pytest.approx(100)
    assert [row["way"] for row in shared] == ["2 samples", "2 beams"]
    assert all(0 < row["saved_percent"] < 100 for row in shared)
    wasted, speed = charts([small, large, stretch, *shared])
    assert [len(chart.series[0].points) for chart in (wasted, speed)] == [2, 2]
