"""Which nodes are shared: what pays, what cannot, and what was fitted on a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sharegen.kernels.cost import CostModel, LatentNodes, cost_file, load_costs, save_costs
from sharegen.kernels.tiles import AttentionShape, Tile
from tests.kernels.test_attention_plan import layout_of

SHAPE = AttentionShape(32, 8, 128, 128, 16, torch.bfloat16)
TILE, SLOTS = Tile(64, 64, 4, 3), 264


def unshared(
    nodes: list[tuple[int, int, int]],
    costs: CostModel | None = None,
    sharing: bool = False,
    has_unshared: bool = False,
) -> list[bool]:
    rows = max(end for _, _, end in nodes)
    costs = costs or CostModel()
    layout = layout_of(nodes, rows)
    return costs.choose_unshared(layout, SHAPE, TILE, SLOTS, sharing, has_unshared).tolist()


def test_few_shot_and_problems_are_shared() -> None:
    nodes = [(1024, 0, 1040)] + [(112, 40 * i, 40 * i + 40) for i in range(26)]
    assert unshared(nodes) == [False] * 27


def test_a_single_row_reads_its_prompt_by_itself() -> None:
    nodes = [(1024, 0, 512)] + [(300, row, row + 1) for row in range(512)]
    assert unshared(nodes) == [False] + [True] * 512
    assert unshared([(1024, row, row + 1) for row in range(512)]) == [True] * 512


def test_a_short_prefix_of_few_rows_is_not_worth_a_phase() -> None:
    assert unshared([(48, 0, 8)]) == [True]
    assert unshared([(4096, 0, 32)]) == [False]


def test_where_there_is_a_shared_phase_the_last_rows_stay_in_it() -> None:
    nodes = [(1024, 0, 3), (96, 0, 1), (96, 1, 3)]
    assert unshared(nodes) == [True] * 3
    assert unshared(nodes, sharing=True) == [False] * 3


def test_another_way_of_reading_must_be_worth_new_graphs() -> None:
    nodes = [(1024, 0, 64)] + [(200, row, row + 1) for row in range(64)]
    assert unshared(nodes) == [False] + [True] * 64
    assert unshared(nodes, sharing=True) == [False] * 65
    assert unshared(nodes, sharing=True, has_unshared=True) == [False] + [True] * 64
    together = [(1024, 0, 64), (32, 0, 32), (32, 32, 64)]
    assert unshared(together, sharing=True) == [False] * 3
    many = [(1024, 0, 1024)] + [(600, row, row + 1) for row in range(1024)]
    assert unshared(many, sharing=True) == [False] + [True] * 1024


def test_all_or_nothing_hangs_on_what_sharing_costs() -> None:
    nodes = [(1024, 0, 512)]
    assert unshared(nodes, CostModel(sharing=0.0)) == [False]
    assert unshared(nodes, CostModel(sharing=1e6)) == [True]


def test_fitted_costs_are_kept_by_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fitted = CostModel(3.0, 2.0, 0.5, 0.25)
    assert load_costs("NVIDIA H200") == CostModel()
    assert save_costs(fitted, "NVIDIA H200") == cost_file("NVIDIA H200")
    assert load_costs("NVIDIA H200") == fitted
    assert load_costs("NVIDIA A100") == CostModel()


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"sharing": "much"}', '{"sharing": null}'])
def test_a_damaged_file_counts_for_nothing(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = save_costs(CostModel(3.0, 2.0, 0.5, 0.25), "a card")
    path.write_text(text)
    assert load_costs("a card") == CostModel()


def test_nodes_of_latents_are_read_by_each_and_others_are_shared() -> None:
    """As times say, too: a row reads 576 numbers of a latent where 20 heads have 10,240."""
    shape = AttentionShape(20, 20, 256, 256, 16, torch.bfloat16)
    layout = layout_of([(64, 0, 4), (64, 4, 8)], 8)
    layout = replace(layout, fp8=np.array([True, False]))
    costs, plain = LatentNodes(width=576), CostModel()
    assert costs.choose_unshared(layout, shape, TILE, SLOTS).tolist() == [True, False]
    each, whole = costs.per_sequence(layout, shape), plain.per_sequence(layout, shape)
    assert each == pytest.approx(whole[1] * 576 / 10_240)
    once = costs.shared(layout, shape, TILE, SLOTS)
    assert once[0] == once[1] == plain.shared(layout, shape, TILE, SLOTS)[1]
