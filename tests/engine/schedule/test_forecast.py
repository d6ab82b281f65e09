"""The forecast: mean and deviation are those of many throws of the dice."""

from __future__ import annotations

import numpy as np
import pytest

from sharegen.engine.core.lengths import Lengths
from sharegen.engine.schedule.forecast import Forecast
from sharegen.engine.schedule.survival import Survival


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def survival(samples: dict[tuple[int, str | None], int], classes: int = 40) -> Survival:
    return Survival(Lengths.of(samples), ints(), 10, classes)


def test_samples_of_one_length() -> None:
    """Seven that end in their fifth block, three of them in the third already."""
    forecast = Forecast(survival({(45, "eos"): 100_000}), 40)
    forecast.add_sequences(ints(0, 2), ints(0, 2), ints(39, 39), ints(4, 3))
    assert forecast.most == pytest.approx(max(4 * 3 + 3 * 5, 4 * 5), abs=1)


def test_the_limit_ends_them() -> None:
    forecast = Forecast(survival({}), 40)
    forecast.add_sequences(ints(0), ints(0), ints(1), ints(10))
    assert forecast.most <= 20


def test_what_is_replayed_does_not_end_before() -> None:
    """They have 100 tokens, and none of them lies in the cache."""
    short = survival({(20, "eos"): 100, (400, "eos"): 10})
    new, back = Forecast(short, 40), Forecast(short, 40)
    new.add_sequences(ints(0), ints(0), ints(39), ints(10))
    back.add_sequences(ints(0), ints(10), ints(39), ints(10))
    assert back.most >= 10 * 37 > 2 * new.most


def test_means_and_deviations() -> None:
    rng = np.random.default_rng(0)
    lengths = 1 + rng.exponential(60, 20_000).astype(np.int64)
    known = Lengths()
    for length in lengths.tolist():
        known.note(length, is_end=True)
    forecast = Forecast(Survival(known, ints(), 10, 60), 60)
    forecast.add_sequences(ints(0), ints(0), ints(59), ints(50))
    thrown = rng.choice(lengths, (2_000, 50))
    blocks = np.arange(60)[:, None, None]
    held = ((blocks + 1) * (thrown > 10 * blocks)).sum(2)
    assert forecast.most == pytest.approx((held.mean(1) + 2.5 * held.std(1)).max(), rel=0.03)
