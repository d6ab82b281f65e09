"""Rows of FP8 with powers of two as scales."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.fp8.products import E4M3, quantise_rows_by_powers
from sharegen.engine.model.fp8.quantising import quantise
from sharegen.errors import ModelError

CPU = torch.device("cpu")


def test_rows_of_few_bits_are_exact_and_others_are_rounded() -> None:
    small = torch.tensor([0.5, 1, -1.5, 6]).repeat(8, 4) * 2.0 ** torch.arange(-40, 40, 10)[:, None]
    numbers, scales = quantise_rows_by_powers(small)
    assert numbers.dtype is E4M3 and torch.equal(numbers.float() * scales, small)
    assert torch.equal(scales.log2(), scales.log2().round())
    x = torch.randn(30, 50) * torch.logspace(-20, 20, 30)[:, None]
    numbers, scales = quantise_rows_by_powers(x)
    assert (numbers.float() * scales - x).abs().max(1).values.lt(x.abs().amax(1) / 16).all()
    assert (numbers.float().abs().amax(1) > 200).all()  # no power less would hold them
    assert torch.equal(quantise_rows_by_powers(torch.zeros(2, 4))[0].float(), torch.zeros(2, 4))


def test_parts_of_rows_have_the_scales_of_the_whole() -> None:
    """As ranks that have some columns of a weight quantise it, knowing the largest of each row."""
    whole = torch.randint(-4, 5, (16, 32)) * 2.0 ** torch.randint(-3, 4, (16, 1))
    expected = quantise(whole, False, CPU, powers=True)
    largest = whole.abs().amax(1, keepdim=True)
    parts = [quantise(part, False, CPU, largest, powers=True) for part in whole.split(16, dim=1)]
    for part in parts:
        assert torch.equal(part.scales, expected.scales) and part.rounded == 0
    joined = torch.cat([part.values.float() for part in parts], dim=1)
    assert torch.equal(joined, expected.values.float())


def test_rows_that_are_rounded_are_counted() -> None:
    wide = torch.ones(4, 16)
    wide[1, 0] = 2.0**-30  # too far below the others
    wide[3, 3] = 1 + 2**-10
    assert quantise(wide, False, CPU, powers=True).rounded == 2
    assert quantise(wide, False, CPU).rounded == 0  # nobody asked
    wide[2, 2] = torch.inf
    with pytest.raises(ModelError, match="NaN or infinite"):
        quantise(wide, False, CPU, powers=True)
