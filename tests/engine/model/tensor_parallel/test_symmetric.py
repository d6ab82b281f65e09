"""Which ranks sum in memory that they share."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.tensor_parallel import symmetric


def test_a_process_shares_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second meeting waits for numbers that new ranks, which count from 0, never reach."""
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *devices: True)
    monkeypatch.setattr(symmetric, "_has_met", False)
    devices = [torch.device("cuda:0"), torch.device("cuda:1")]
    assert symmetric.shared_memory(devices, 0)
    assert not symmetric.shared_memory(devices[:1] * 2, 0)
    monkeypatch.setattr(symmetric, "_has_met", True)
    assert not symmetric.shared_memory(devices, 0)
