"""What a plan says of how a GPU's decoding step reads the levels of the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sharegen.cli.plan import plan_table
from sharegen.common.mappings import merge
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.core.block_format import BlockFormat
from sharegen.job import machine
from sharegen.job.attention_modes import attention_modes
from sharegen.job.sharing_plan import LevelMode, SharingPlan, make_plan
from sharegen.kernels.cost import CostModel
from sharegen.kernels.tiles import AttentionShape
from sharegen.workload.configuration import resolve

SHAPE = AttentionShape(32, 8, 128, 128, 16, torch.bfloat16)
H200_PROGRAMS = 264


def prompts(problems: int, shots: int = 1024, own: int = 300) -> list[list[int]]:
    return [[1] * shots + [2 + i] * own for i in range(problems)]


def of(samples: int, problems: int = 512, rows: int = 512) -> list[LevelMode]:
    tree = PrefixTree.build(prompts(problems), 16)
    return attention_modes(tree, samples, rows, SHAPE, CostModel(), H200_PROGRAMS)


def test_a_problem_with_one_sample_is_read_by_it() -> None:
    shots, own = of(samples=1)
    assert (shots.level, shots.nodes, shots.apart) == (0, 1, 0)
    assert shots.once < shots.each
    assert (own.level, own.nodes, own.apart) == (1, 512, 512)
    assert own.each < own.once


@pytest.mark.parametrize(
    ("sampling", "is_alone"),
    [
        ({"samples": 1, "temperature": 1.0}, False),  # which may be extended
        ({"samples": 9, "temperature": 1.0}, False),
        ({"samples": 9, "temperature": 0.0}, True),  # one sequence, however many are asked
        (
            {"samples": 1, "temperature": 0.0, "decoding": "beam"},
            True,
        ),  # a journal keeps it
        ({"samples": 4, "temperature": 0.0, "decoding": "beam"}, False),
    ],
    ids=str,
)
def test_in_the_deterministic_mode_a_prompt_is_read_by_what_its_job_can_become(
    sampling: dict[str, Any], is_alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "blocks_of", lambda *_: BlockFormat(1))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "?"}\n')
    given = {
        "model": str(tmp_path),
        "sampling": {"max_tokens": 4} | sampling,
        "machine": {"device": "cpu"},
    }

    def found(**mode: Any) -> list[bool] | None:
        configuration = resolve("prompts", str(rows), merge(given, {"machine": mode}))
        return machine.single(configuration, None, [configuration.sampling])  # type: ignore[arg-type]

    assert found() is None
    assert found(deterministic=True) == [is_alone]


def test_a_problem_with_many_samples_is_read_once() -> None:
    """The first batch alone counts: 512 rows are 16 problems with 32 samples."""
    shots, own = of(samples=32)
    assert (shots.apart, own.nodes, own.apart) == (0, 16, 0)


def test_in_the_deterministic_mode_the_tree_decides() -> None:
    """However few rows run now, and whatever it costs."""
    for rows in (1, 512):
        for alone, apart in ((True, min(rows, 8)), (False, 0)):
            tree = PrefixTree.build(prompts(8, own=20), 16, alone=[alone] * 8)
            costs = CostModel()
            shots, own = attention_modes(tree, 1, rows, SHAPE, costs, H200_PROGRAMS, by_tree=True)
            assert (shots.apart, own.apart) == (0, apart)


def test_the_plan_tells_the_decision_and_why() -> None:
    made = make_plan(
        PrefixTree.build(prompts(4), 16), prompts(4), list("abcd"), 1, 20,
        num_blocks=1000, kv_bytes_per_token=8, max_sequences=64,
    )  # fmt: skip
    assert made.readings == []
    read = [
        LevelMode(0, 1, 0, 3.0, 40.5),
        LevelMode(1, 4, 4, 9.0, 2.0),
        LevelMode(2, 4, 1, 9.0, 2.0),
    ]
    told = SharingPlan.from_json({**made.to_json(), "readings": [vars(r) for r in read]})
    assert told.readings == read
    cells = [str(cell) for cell in plan_table(told, None).columns[1].cells][-4:-1]
    assert cells[0].startswith("1 node, read once for all sequences below (3.0 µs a layer against")
    assert cells[1].startswith("4 nodes, read by each sequence with its own tokens (2.0 µs")
    assert cells[2].startswith("4 nodes, of which 1 read by each sequence")
