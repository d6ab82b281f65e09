"""PAT's trees: all of them are trees, and each way reads one right."""

from __future__ import annotations

import torch

from sharegen.bench.papers.experiment import Settings
from sharegen.bench.papers.pat_trees import HEADS, TREES, Levels, charts, measure


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


def test_measures_a_tree_by_all_ways() -> None:
    trees = (TREES[3], TREES[18])
    settings = Settings(torch.device("cpu"), torch.float32, quick=True, repeats=1)
    rows = list(measure(trees, ((16, 8),), settings))
    assert [(row["heads"], row["number"], row["tree"]) for row in rows] == [
        ("2/1", 1, "1,1,32_128,32,32"),
        ("2/1", 2, "32_128"),
    ]
    for row in rows:
        assert row["error"] < 1e-5 and row["each_us"] > 0 and row["torch_us"] > 0
    [chart] = charts(rows)
    assert [len(series.points) for series in chart.series] == [2, 2, 2, 0]
