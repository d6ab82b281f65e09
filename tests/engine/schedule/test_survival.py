"""The life table: who still runs counts, and the short ones that end first mislead nobody."""

from __future__ import annotations

import random

import numpy as np
import pytest

from sharegen.engine.core.lengths import Lengths
from sharegen.engine.schedule.survival import Survival

NOBODY = np.empty(0, dtype=np.int64)


def table(lengths: Lengths, running: list[int], size: int = 10, classes: int = 50) -> Survival:
    return Survival(lengths, np.array(running, dtype=np.int64), size, classes)


def test_all_ended() -> None:
    """Nothing but counting: of 1,000 samples half are longer than 30 tokens, a tenth than 60."""
    lengths = Lengths.of({(30, "eos"): 500, (60, "stop"): 400, (61, None): 100})
    reached = table(lengths, []).reached
    assert reached[2] == pytest.approx(1, abs=0.01)
    assert reached[3] == pytest.approx(0.5, abs=0.01)
    assert reached[5] == pytest.approx(0.5, abs=0.01)
    assert reached[6] == pytest.approx(0.1, abs=0.01)
    assert reached[7] < 0.001


def test_the_first_to_end_are_not_typical() -> None:
    """A quarter has ended with 10 to 20 tokens; that the others run at 200 says most."""
    lengths = Lengths.of({(length, "eos"): 25 for length in range(11, 21)})
    reached = table(lengths, [200] * 750).reached
    assert reached[2] == pytest.approx(0.75, abs=0.01)
    assert reached[20] == pytest.approx(0.75, abs=0.01)


def test_a_limit_is_no_end() -> None:
    """Half of the samples may have 20 tokens at most: the others say what is beyond."""
    lengths = Lengths.of({(20, "length"): 1_000, (100, "eos"): 500, (200, "eos"): 500})
    reached = table(lengths, []).reached
    assert reached[2] == pytest.approx(1, abs=0.01)
    assert reached[10] == pytest.approx(0.5, abs=0.01)


def test_nothing_is_known() -> None:
    """Whoever came far goes on far: on average half of that, and half of the scale."""
    survival = table(Lengths(), [], size=4, classes=100_000)
    for known in (0, 100, 1_000):
        blocks = np.arange(known, 100_000)
        beyond = survival.beyond(np.full_like(blocks, known), blocks)
        assert 4 * beyond.sum() == pytest.approx((192 + 4 * known) / 2, rel=0.03)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_estimate_is_that_of_all_however_few_have_ended(share: float) -> None:
    """Samples that start one after the other and are looked at in the middle."""
    rng = random.Random(0)
    lengths = [1 + int(rng.expovariate(1 / 60)) for _ in range(20_000)]
    seen, running = Lengths(), []
    for length in lengths:
        age = rng.randint(1, int(300 * share))
        if length <= age:
            seen.note(length, is_end=True)
        else:
            running.append(age)
    reached = table(seen, running).reached
    for block in range(int(25 * share)):
        truth = sum(length > 10 * block for length in lengths) / len(lengths)
        assert reached[block] == pytest.approx(truth, abs=0.02)
