"""What a worker does before it has an engine."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.parallel.worker import stay_on


def test_a_gpu_without_an_index_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Ray actor's is; torch's own call takes no device without an index."""
    chosen: list[object] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("cuda", "cuda:3", "cpu"):
        stay_on(torch.device(name))
    assert chosen == [0, 3]
