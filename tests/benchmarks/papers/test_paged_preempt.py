"""Swapping and recomputation under the paper's name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.experiment import Settings
from benchmarks.papers.paged_preempt import Sweep, charts, measure
from sharegen.errors import UsageError
from tests.engine.tiny_models import tiny_config


@pytest.mark.slow
def test_every_size_has_its_numbers(tmp_path: Path) -> None:
    tiny_config("llama").save_pretrained(tmp_path)
    settings = Settings(torch.device("cpu"), torch.float32, repeats=1)
    rows = list(measure(Sweep(str(tmp_path), (4, 16), (6, 20), 2), settings))
    assert [(r["block"], r["tokens"]) for r in rows] == [(4, 6), (4, 20), (16, 6), (16, 20)]
    for row in rows:
        assert min(row["out_ms"], row["in_ms"], row["one_pass_ms"], row["replay_ms"]) > 0
    short, long = charts(rows)
    assert len(short.series) == len(long.series) == 4
    with pytest.raises(UsageError, match="tokens of context: lengths may be up to"):
        next(measure(Sweep(str(tmp_path), (4,), (100_000,), 2), settings))
