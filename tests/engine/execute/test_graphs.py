"""Which graph a step runs in: its own, or a larger one while that is cheaper than a capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sharegen.engine.execute import graphs
from sharegen.engine.execute.graphs import Outputs, StepGraphs
from sharegen.engine.execute.padding import graph_rows


class Replayed:
    """Stands in for a CUDA graph."""

    def replay(self) -> None:
        """The outputs are there already."""


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of all graphs that are captured, in order."""
    found: list[int] = []

    def capture(
        self: StepGraphs, step: Callable[[], Outputs], changing: object, set_aside: object
    ) -> tuple[Replayed, Outputs]:
        outputs = step()
        found.append(len(outputs[0]))
        return Replayed(), outputs

    monkeypatch.setattr(StepGraphs, "_capture", capture)
    return found


def ran(held: StepGraphs, rows: int, kind: str = "plain", generation: int = 0) -> int:
    """The rows of the graph that a step of so many runs in."""
    [drawn] = held.run(rows, kind, generation, lambda count: (torch.zeros(count),), [])
    return len(drawn)


def test_few_rows_run_in_a_larger_graph_until_one_of_their_own_pays(captured: list[int]) -> None:
    held = StepGraphs()
    assert ran(held, 64) == 64  # nothing larger is there
    assert ran(held, 128) == 128 and ran(held, 64) == 64
    while ran(held, 32) == 64:  # the next larger one
        assert len(captured) == 2
    assert captured == [64, 128, 32]
    assert ran(held, 16, kind="penalised") == 16  # a larger graph of another kind does not serve
    assert ran(held, 32, generation=1) == 32  # all are stale
    assert captured == [64, 128, 32, 16, 32]


@pytest.mark.parametrize("most", [8192, 1024, 256])
def test_a_batch_that_empties_runs_in_few_graphs_of_about_its_rows(
    captured: list[int], most: int
) -> None:
    """Each row ends in one of 126 steps, as samples of 126 tokens on average do."""
    held, rows, dead = StepGraphs(), float(most), 0.0
    while rows >= 1:
        asked = graph_rows(int(rows))
        size = ran(held, asked)
        dead += (size - asked) / (size + graphs._OF_NO_ROW)
        rows *= 1 - 1 / 126
    assert len(captured) <= 10
    assert dead <= graphs._WORTH * len(captured)
