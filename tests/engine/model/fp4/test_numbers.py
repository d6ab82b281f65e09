"""MXFP4's numbers, to and fro."""

from __future__ import annotations

import torch

from sharegen.engine.model.fp4.numbers import GROUP, powers, rounded, widened

NUMBERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_a_byte_has_two_numbers_the_first_in_its_lower_half() -> None:
    blocks = torch.arange(256).to(torch.uint8)
    scales = torch.full((256 * 2 // GROUP,), 127, dtype=torch.uint8)
    every = torch.tensor([*NUMBERS, *(-number for number in NUMBERS)])
    expected = torch.stack((every.repeat(16), every.repeat_interleave(16)), dim=-1).flatten()
    assert torch.equal(widened(blocks, scales), expected)


def test_scales_are_powers_of_two() -> None:
    found = powers(torch.tensor([0, 1, 126, 127, 130, 254, 255], dtype=torch.uint8))
    assert found[:-1].tolist() == [2.0**-127, 2.0**-126, 0.5, 1.0, 8.0, 2.0**127]
    assert found[-1].isnan()


def test_numbers_that_there_are_stay_what_they_are() -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(256, (3, 4, 48), dtype=torch.uint8, generator=generator)
    blocks[..., ::16] = 0x7F  # so that each group has 6, and its scale is the least
    scales = torch.randint(1, 129, (3, 4, 3), dtype=torch.uint8, generator=generator)
    numbers = widened(blocks, scales)
    again = rounded(numbers, 128)
    assert torch.equal(again[1], scales) and torch.equal(widened(*again), numbers)


def test_others_become_the_nearest() -> None:
    weight = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)) * 0.02
    weight[0] = 0
    blocks, scales = rounded(weight, 128)
    assert blocks.shape == (5, 48) and scales.shape == (5, 3)
    found = widened(blocks, scales).unflatten(-1, (-1, GROUP))
    groups = weight.unflatten(-1, (-1, GROUP))
    step = powers(scales)[..., None]
    assert (found.abs() <= 6 * step).all()
    every = torch.tensor([*NUMBERS, *(-number for number in NUMBERS)]) * step[..., None]
    nearest = (groups[..., None] - every).abs().amin(-1)
    assert torch.equal((found - groups).abs(), nearest)
    blocks, _ = rounded(torch.full((1, 32), 1e9), 128)
    assert (blocks == 0x77).all()  # the largest there is
