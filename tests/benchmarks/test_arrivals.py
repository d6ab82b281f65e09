"""When requests arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.arrivals import poisson


def test_arrivals_are_a_poisson_process() -> None:
    times = poisson(4.0, 2000, seed=1)
    assert times == poisson(4.0, 2000, seed=1) != poisson(4.0, 2000, seed=2)
    gaps = [after - before for before, after in pairwise([0.0, *times])]
    assert min(gaps) > 0
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 4, rel=0.1)
    assert sum(gap > 1 / 4 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)
