"""The chunks of a prefill that mixers take together, or one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sharegen.engine.core.batch import MixedChunks
from sharegen.engine.execute.row_states import StatesOfChunks


class Mixer:
    def width(self, size: int) -> int:
        return size


class Pool:
    """Adds up a chunk's tokens, and notes the slots of what it is given together."""

    def __init__(self) -> None:
        self.mixers = [Mixer()]
        self.together: list[tuple[list[int], list[int], list[int]]] = []

    def mix(self, index: int, hidden: torch.Tensor, places: Any) -> torch.Tensor:
        given = (places.read, places.write, places.position)
        self.together.append(tuple(each.tolist() for each in given))  # type: ignore[arg-type]
        return hidden.cumsum(1)


@pytest.mark.parametrize("apart", [False, True])
def test_chunks_of_equal_length_go_together_or_one_by_one(apart: bool) -> None:
    pool = Pool()
    mixed = [
        MixedChunks(np.array([0, 5]), 2, np.array([1, 2]), np.array([3, 4])),
        MixedChunks(np.array([2]), 3, np.array([5]), np.array([6])),
    ]
    positions = np.array([7, 8, 0, 1, 2, 9, 10])

    def send(*arrays: Any) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.from_numpy, arrays))

    states = StatesOfChunks(pool, mixed, positions, send, apart)  # type: ignore[arg-type]
    hidden = torch.arange(1.0, 9.0)[:, None]  # one row pads the batch
    found = states.mix(0, hidden)[:, 0].tolist()
    assert found == [1.0, 3.0, 3.0, 7.0, 12.0, 6.0, 13.0, 0.0]
    one_by_one = [([1], [3], [7]), ([2], [4], [9]), ([5], [6], [0])]
    together = [([1, 2], [3, 4], [7, 9]), ([5], [6], [0])]
    assert pool.together == (one_by_one if apart else together)
