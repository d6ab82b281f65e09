"""ChunkAttention's kernel: what is measured for each table and figure, and how rates come of it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers.chunk_kernel import FULL, Points, charts, measure, with_rates
from benchmarks.papers.experiment import Row, Settings
from sharegen.bench.attention_case import Case

TINY = Points(
    shape=Case(2, 2, 0, 0, 1, 1, 1, head_size=16),
    batch=3,
    table_1=((1, 40),),
    table_3=((40, 0), (40, 24)),
    prompts=(32,),
    completions=(2, 5),
    batches=(1, 2),
    prompt=16,
    completion=4,
)


def test_measures_tables_and_figures() -> None:
    rows = list(measure(TINY, Settings(torch.device("cpu"), torch.float32, repeats=1)))
    where = [
        (row["part"], row["batch"], row["prompt"], row["shared"], row["completion"]) for row in rows
    ]
    assert where == [
        ("table 1", 1, 40, 0, 0),
        ("table 3", 3, 40, 0, 1),
        ("table 3", 3, 40, 24, 1),
        ("figure 3", 3, 32, 32, 2),
        ("figure 3", 3, 32, 32, 5),
        ("figure 4", 1, 16, 16, 4),
        ("figure 4", 2, 16, 16, 4),
    ]
    for row in rows:
        assert row["error"] < 1e-5
        assert ("sharegen_rate" in row) == row["part"].startswith("figure")
    third, fourth = charts(rows)
    assert [len(series.points) for series in third.series] == [2, 2, 2, 0]
    assert [x for x, _ in fourth.series[0].points] == [1, 2]


def test_work_is_that_of_table_1() -> None:
    """The paper adds the scores, which our kernels do not write: 33.85e6 bytes, not 33.57e6."""
    case = FULL.case(1, 0, 2048)
    assert case.operations / 1e6 == pytest.approx(33.57, rel=1e-3)
    assert case.moved_bytes(2) / 1e6 == pytest.approx(33.85, rel=1e-2)
    assert case.operations / case.moved_bytes(2) == pytest.approx(0.99, abs=0.01)
    assert FULL.case(32, 2048, 1).moved_bytes(2) < case.moved_bytes(2) * 1.1


def test_rates_are_of_all_steps_so_far() -> None:
    steps: list[Row] = [
        {"batch": 10, "completion": n, "sharegen_us": us, "torch_us": torch_us}
        for n, us, torch_us in ((1, 100.0, None), (11, 300.0, 5.0), (21, 300.0, 5.0))
    ]
    first, second = with_rates(steps)
    assert first["sharegen_rate"] == pytest.approx(10 * 10 / (10 * 200e-6))
    assert second["sharegen_rate"] == pytest.approx(10 * 20 / (10 * 200e-6 + 10 * 300e-6))
    assert "torch_rate" not in first and "torch_rate" not in second


def test_what_does_not_fit_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    huge = Points(Case(2, 2, 0, 0, 1, 1, 1), 1, ((1, 1 << 40), (1, 8)), (), (), (), (), 1, 1)
    [row] = measure(huge, Settings(torch.device("cpu"), torch.float32, repeats=1))
    assert row["prompt"] == 8
    assert capsys.readouterr().err.startswith("left out: 2/2")
