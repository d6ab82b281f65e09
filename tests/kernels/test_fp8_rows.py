"""Rows in e4m3, and those of a gated activation."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.fp8.products import LEAST, quantise_rows
from sharegen.kernels.fp8_rows import FP8Rows, gated_rows, rows_of
from tests.kernels.trees import DEVICE

DTYPES = [torch.float16, torch.float32]
if DEVICE.type == "cuda":
    DTYPES.append(torch.bfloat16)


def assert_rows(rows: FP8Rows, wide: torch.Tensor) -> None:
    """That they are what float32 gives."""
    expected, scales = quantise_rows(wide)
    torch.testing.assert_close(rows.scales, scales, rtol=1e-6, atol=0.0)
    assert_numbers(rows.numbers, expected)


def assert_numbers(found: torch.Tensor, expected: torch.Tensor) -> None:
    """That numbers in e4m3 are alike, but for some that lie between two of them."""
    found, expected = found.float(), expected.float()
    between = found != expected
    if DEVICE.type == "cpu":  # the interpreter cuts off the smallest, and at powers of two
        between &= torch.frexp(expected).mantissa.abs() != 0.5
        between &= expected.abs() > 2.0**-6
    assert between.float().mean() < 1e-3
    step = (expected.abs() / 8).clamp(min=2.0**-9)
    assert ((found - expected).abs()[between] <= step[between]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 4096, 5120])
def test_rows_as_they_are(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(6, 2 * size, generator=generator, device=DEVICE).to(dtype)[:, :size]
    x[1], x[2] = 0.0, x[2] * 1e-6
    assert_rows(rows_of(x, LEAST), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 1024, 11_008])
def test_rows_are_those_of_the_product(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    joint = torch.randn(6, 2 * size + 16, generator=generator, device=DEVICE).to(dtype) * 3
    gate, up = joint[:, :size], joint[:, size : 2 * size]
    gate[1], up[2], gate[3, 5], gate[4] = 0.0, 0.0, -300.0, 300.0
    wide = torch.nn.functional.silu(gate.float()) * up.float()
    assert_rows(gated_rows(gate, up, LEAST), wide)


def test_what_is_no_number_is_not_lost() -> None:
    gate = torch.ones(3, 64, device=DEVICE)
    gate[1, 7], gate[2, 9] = float("nan"), float("inf")
    scales = gated_rows(gate, torch.ones_like(gate), LEAST).scales
    assert scales.isfinite().flatten().tolist() == [True, False, False]
