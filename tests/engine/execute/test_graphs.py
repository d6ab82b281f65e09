"""Which graph a step runs in: its own, or a larger one while that is cheaper than a capture."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sharegen.engine.execute import graphs
from sharegen.engine.execute.graphs import Outputs, StepGraphs


class Replayed:
    """Stands in for a CUDA graph."""

    def replay(self) -> None:
        """The outputs are there already."""


def test_few_rows_run_in_a_larger_graph_until_one_of_their_own_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    captured: list[int] = []

    def capture(
        self: StepGraphs, step: Callable[[], Outputs], changing: object, set_aside: object
    ) -> tuple[Replayed, Outputs]:
        outputs = step()
        captured.append(len(outputs[0]))
        return Replayed(), outputs

    monkeypatch.setattr(StepGraphs, "_capture", capture)
    held = StepGraphs()

    def ran(rows: int, kind: str = "plain", generation: int = 0) -> int:
        [drawn] = held.run(rows, kind, generation, lambda count: (torch.zeros(count),), [])
        return len(drawn)

    assert ran(64) == 64  # nothing larger is there
    assert ran(128) == 128 and ran(64) == 64
    assert [ran(32) for _ in range(graphs._FEW)] == [64] * graphs._FEW  # the next larger one
    assert ran(32) == 32 and captured == [64, 128, 32]
    assert ran(16, kind="penalised") == 16  # a larger graph of another kind does not serve
    assert ran(32, generation=1) == 32  # all are stale
    assert captured == [64, 128, 32, 16, 32]
