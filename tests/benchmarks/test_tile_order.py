"""What two kinds of products make of the same rows and keys is compared, state by state."""

from __future__ import annotations

import pytest
import torch

from benchmarks.tile_order import CASES, SIZE, TILE, Case, Comparison, bench_tile_order

pytestmark = pytest.mark.turn(4)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison(CPU, torch.float32, heads=1, tiles=3)


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[-1]], ids=lambda case: case.name)
def test_the_state_is_that_of_softmax(comparison: Comparison, case: Case) -> None:
    _, (acc, m, total) = comparison.run(case)
    scores = comparison.q @ comparison.k.mT * SIZE**-0.5
    torch.testing.assert_close(acc / total[..., None], scores.softmax(-1) @ comparison.v)
    lse = m * 0.6931471805599453 + total.log()
    torch.testing.assert_close(lse, scores.logsumexp(-1))


def test_a_state_is_handed_on_where_it_was_left(comparison: Comparison) -> None:
    """By the same kind it is the bits of one go, and the rows beside do not matter to a row."""
    for case in (CASES[0], CASES[1]):
        found = comparison.against(case, case)
        assert set(found.values()) == {1.0}


def test_other_tiles_are_other_bits(comparison: Comparison) -> None:
    found = comparison.against(CASES[-1], CASES[1])
    assert CASES[-1].keys < TILE and found["scores"] is None
    assert found["total"] is not None and found["total"] < 1.0


@pytest.mark.slow
def test_every_case_is_a_line() -> None:
    lines = list(bench_tile_order("cpu", "float32", heads=1, tiles=1))
    assert [line["case"] for line in lines] == [case.name for case in CASES]
    assert all(line["beside others"] is not None for line in lines)
