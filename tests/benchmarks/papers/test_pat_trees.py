"""PAT's trees: all of them are trees, and each way reads one right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.papers.experiment import Settings
from benchmarks.papers.pat_trees import HEADS, TREES, Levels, charts, measure
from sharegen.bench.layer import Layer

CPU = torch.device("cpu")


def test_trees_are_even() -> None:
    assert len(TREES) == len(set(TREES)) == 20 and len(HEADS) == 4
    for nodes, tokens in TREES:
        assert len(nodes) == len(tokens)
        full = Levels(32, 8, nodes, tokens[:-1], tokens[-1])
        for case in (full, full.smaller()):
            assert case.context == sum(case.tokens) + case.suffix
            assert all(case.rows % count == 0 for count, _ in case.levels)
        assert full.context == sum(tokens) and full.rows == nodes[-1]
        assert len(full.smaller().levels) == len(full.levels) and full.smaller().rows <= 32


def test_a_peer_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said once where it does not compile; where it does, only what it cannot do is left out."""
    asked = []

    def peer(works: int) -> Callable[[Layer], Callable[[], None]]:
        def flashinfer(layer: Layer) -> Callable[[], None]:
            asked.append(layer.case)
            if len(asked) != works:
                raise OSError("no ninja\nin a long trace")
            return lambda: None

        return flashinfer

    monkeypatch.setattr(Layer, "flashinfer_error", lambda layer, step: 0.01)

    settings = Settings(CPU, torch.float32, True, 1, frozenset({"flashinfer"}))
    for works, times, said in ((0, 1, ["FlashInfer's column is"]), (1, 2, ["FlashInfer is"])):
        asked.clear()
        monkeypatch.setattr(Layer, "flashinfer", peer(works))
        rows = list(measure((TREES[18], TREES[3]), ((16, 8),), settings))
        assert [row["flashinfer_us"] is not None for row in rows] == [works == 1, False]
        assert len(asked) == times
        [line] = capsys.readouterr().err.splitlines()
        assert said[0] in line and line.endswith("left out: no ninja")


def test_no_memory_for_a_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(layer: Layer) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Layer, "read_by_each", full)
    settings = Settings(CPU, torch.float32, quick=True, repeats=1)
    [row] = measure((TREES[18],), ((16, 8),), settings)
    assert row["each_us"] is None and row["sharegen_us"] > 0 and row["torch_us"] > 0
    [line] = capsys.readouterr().err.splitlines()
    assert line == "2/1 32_128, each row is left out: it ran out of memory"


def test_measures_a_tree_by_all_ways() -> None:
    trees = (TREES[3], TREES[18])
    settings = Settings(CPU, torch.float32, quick=True, repeats=1)
    rows = list(measure(trees, ((16, 8),), settings))
    assert [(row["heads"], row["number"], row["tree"]) for row in rows] == [
        ("2/1", 1, "1,1,32_128,32,32"),
        ("2/1", 2, "32_128"),
    ]
    for row in rows:
        assert row["error"] < 1e-5 and row["each_us"] > 0 and row["torch_us"] > 0
    [chart] = charts(rows)
    assert [len(series.points) for series in chart.series] == [2, 2, 2, 0]
