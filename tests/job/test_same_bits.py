"""On a CPU in the deterministic mode: one journal, byte for byte, whatever happened to its job."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.job.same_bits import (
    KINDS,
    TINY,
    UNEQUAL,
    WINDOWED,
    differing,
    lines,
    make_place,
    ways_of,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", [*KINDS, *WINDOWED, UNEQUAL])
def test_few_rows_a_kill_preemption_and_more_samples_change_no_byte(
    kind: str, tmp_path: Path
) -> None:
    place = make_place(tmp_path, kind, TINY, "cpu", torch.float32)
    ways = ways_of(place, TINY, TINY.cache[kind], device="cpu", workers=1)
    ways["at once"](tmp_path / "at once.jsonl")
    wanted = lines(tmp_path / "at once.jsonl")
    assert len(wanted) == TINY.prompts * TINY.samples
    for way in ("preempted", "in shards", "all of it"):
        said = ways[way](tmp_path / f"{way}.jsonl")
        assert differing(wanted, tmp_path / f"{way}.jsonl") == 0, said
        # States take so much of a hybrid's memory that admission leaves room for all, and eight
        # rows of latents fit in the least memory that a prompt needs.
        fits = kind == "hybrid" or (kind == UNEQUAL and way == "all of it")
        assert fits or " 0 preemptions" not in f" {said}", said


@pytest.mark.turn(6)
@pytest.mark.parametrize("kind", ["dense", "MoE"])
def test_four_ranks(kind: str, tmp_path: Path) -> None:
    """Whose sums have several orders, and of whom each holds half of the KV."""
    place = make_place(tmp_path, kind, TINY, "cpu", torch.float32)
    ways = ways_of(place, TINY, TINY.cache[kind] // 2, device="cpu", tensor_parallel_size=4)
    ways["at once"](tmp_path / "at once.jsonl")
    said = ways["all of it"](tmp_path / "all of it.jsonl")
    assert differing(lines(tmp_path / "at once.jsonl"), tmp_path / "all of it.jsonl") == 0, said
    assert " 0 preemptions" not in f" {said}", said
