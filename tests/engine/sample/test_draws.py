"""The counter-based generator against its definition in plain integers."""

import torch

from sharegen.engine.core.random_key import row_key
from sharegen.engine.sample.draws import uniform

MASK = (1 << 64) - 1


def splitmix64(state: int, count: int) -> int:
    """The generator's output number `count` (from 0), as its authors' C code computes it."""
    z = (state + (count + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_reference_is_splitmix64():
    # Published outputs for seed 1234567.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [splitmix64(1234567, i) for i in range(3)] == expected


def test_uniform_is_the_top_24_bits_of_splitmix64():
    keys = [row_key(seed, 17, 3) for seed in range(50)]
    positions = [0, 1, 2, 1000, 2**31, 2**40]
    for position in positions:
        drawn = uniform(torch.tensor(keys), torch.full((50,), position))
        assert drawn.dtype == torch.float32
        assert drawn.tolist() == [(splitmix64(key, position) >> 40) / 2**24 for key in keys]


def test_uniform_does_not_depend_on_the_batch():
    keys = torch.tensor([row_key(0, i, 0) for i in range(101)])
    positions = torch.arange(101)
    together = uniform(keys, positions)
    alone = torch.cat([uniform(keys[i : i + 1], positions[i : i + 1]) for i in range(101)])
    assert torch.equal(together, alone)


def test_uniform_fills_the_unit_interval_evenly():
    keys = torch.tensor([row_key(1, i, 5) for i in range(400)]).repeat_interleave(250)
    drawn = uniform(keys, torch.arange(250).repeat(400))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.histc(drawn, bins=100, min=0, max=1)
    chi_square = ((counts - 1000) ** 2 / 1000).sum().item()
    assert chi_square < 149  # 99 degrees of freedom, one in a thousand


def test_neighbouring_positions_and_rows_are_uncorrelated():
    keys = torch.tensor([row_key(0, i // 20, i % 20) for i in range(500)])
    drawn = uniform(keys.repeat_interleave(200), torch.arange(200).repeat(500)).view(500, 200)
    centred = drawn - 0.5
    along = (centred[:, 1:] * centred[:, :-1]).mean() * 12
    across = (centred[1:] * centred[:-1]).mean() * 12
    assert abs(along) < 0.015
    assert abs(across) < 0.015


def test_row_key_separates_every_part():
    keys = {row_key(s, r, i) for s in range(-5, 15) for r in range(30) for i in range(30)}
    assert len(keys) == 20 * 30 * 30
    assert all(0 <= key < 2**63 for key in keys)
    assert row_key(1, 2, 3) != row_key(2, 1, 3) != row_key(1, 3, 2)


def test_row_key_is_fixed_for_good():
    """A journal is continued with the numbers it began with."""
    assert row_key(0, 0, 0) == 1279368494785126216
    assert row_key(7, 2**63 - 1, 41) == 4227021935850706368
