"""Admission: what samples might need at most is nearly nothing to it, what they will need is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from sharegen.engine.core.lengths import Lengths
from tests.engine.schedule.papers import count, drawn

SHAPES: dict[str, Callable[[random.Random], float]] = {
    "even": lambda rng: rng.randint(5, 99),
    "short": lambda rng: min(100, rng.expovariate(1 / 40)),
    "long tail": lambda rng: min(100, rng.lognormvariate(4, 0.6)),
    "two kinds": lambda rng: rng.choice([rng.randint(8, 15), rng.randint(80, 99)]),
    "all the same": lambda rng: 80,
}


@pytest.mark.parametrize("block_size", [pytest.param(4, marks=pytest.mark.slow), 16])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.turn(5)
def test_the_limit_hardly_matters(shape: str, block_size: int) -> None:
    lengths = drawn(SHAPES[shape], 160)
    tight = count(lengths, 100, blocks=400, block_size=block_size)
    loose = count(lengths, 1_000, blocks=400, block_size=block_size)
    none = count(lengths, 400 * block_size - 100, blocks=400, block_size=block_size)
    assert loose.steps <= 1.1 * tight.steps
    assert none.steps <= 1.1 * tight.steps


@pytest.mark.slow
def test_preemption_is_rare_and_memory_is_used() -> None:
    lengths = drawn(lambda rng: rng.lognormvariate(4, 0.6), 1_000)
    job = count(lengths, 1_000, blocks=400)
    assert job.preemptions < 0.02 * len(lengths)
    assert job.replayed < 0.002 * job.tokens
    # A block is held from when its first token is fed to when its sample ends: who keeps all
    # blocks in use all the time needs so many steps.
    held = sum(-(-fed // 16) + 1 for length in lengths for fed in range(1, length))
    assert job.steps < 1.35 * held / 400


@pytest.mark.slow
def test_what_an_earlier_run_has_seen_is_known_from_the_start() -> None:
    """All samples are long: who does not know it begins too many, and throws their tokens away."""
    lengths = drawn(lambda rng: rng.randint(200, 250), 80)
    knowing = count(lengths, 1_000, blocks=200, known=Lengths.of({(225, "eos"): 50}))
    assert knowing.replayed < 0.02 * knowing.tokens
    assert count(lengths, 1_000, blocks=200).replayed > knowing.replayed
