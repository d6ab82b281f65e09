"""What several ranks ask for before a step that may take memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sharegen.engine.execute import room
from sharegen.engine.execute.room import Room, StepMemory, TakenBack
from sharegen.engine.model.tensor_parallel.ranks import Ranks, connect, disconnect

LARGEST = StepMemory(tokens=100, rows=8, prefill=1000, decode=800)


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """One, which agrees with itself."""
    yield connect(0, 1, f"file://{tmp_path}/meeting", torch.device("cpu"))
    disconnect()


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that can be had: the one number in it."""
    free = [0]
    monkeypatch.setattr(room, "has_room", lambda count, device: count <= free[0])
    return free


def test_smaller_steps_ask_for_less(ranks: Ranks, free: list[int]) -> None:
    asks = Room(ranks, LARGEST)
    free[0] = 500
    asks.for_prefill(50)
    asks.for_decode(5)
    with pytest.raises(TakenBack):
        asks.for_prefill(51)
    with pytest.raises(TakenBack):
        asks.for_decode(6)
    free[0] = 1500
    asks.for_capture(5, pytest.fail)
    free[0] = 1800
    asks.for_capture(9, pytest.fail)  # rows beyond the largest step are dead


def test_graphs_give_way_to_one_that_is_captured(ranks: Ranks, free: list[int]) -> None:
    """Those of the jobs that an engine starts with, say: a step is not made smaller for them."""
    asks = Room(ranks, LARGEST)
    asks.for_capture(0, lambda: free.__setitem__(0, 1000))
    assert free == [1000]
    with pytest.raises(TakenBack):
        asks.for_capture(1, lambda: None)
