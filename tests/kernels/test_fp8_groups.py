"""Numbers in e4m3 with a scale for 128 of a row, and those of a gated activation."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.fp8.blocks import quantise_groups
from sharegen.engine.model.fp8.products import LEAST
from sharegen.kernels.fp8_groups import GROUP, FP8Groups, groups_of
from tests.kernels.test_fp8_rows import DTYPES, assert_numbers
from tests.kernels.trees import DEVICE


def assert_groups(found: FP8Groups, wide: torch.Tensor) -> None:
    """That they are what float32 gives, and zeros behind its rows."""
    numbers, scales = quantise_groups(wide)
    count = len(wide)
    own = found.scales.t() if found.by_columns else found.scales
    torch.testing.assert_close(own[:count], scales, rtol=1e-6, atol=0.0)
    assert_numbers(found.numbers[:count], numbers)
    assert not found.numbers[count:].float().any() and own[count:].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "rows"), [(48, 6), (128, 8), (300, 6), (5120, 8), (6144, 6)])
def test_groups_as_they_are(size: int, rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(6, 2 * size, generator=generator, device=DEVICE).to(dtype)[:, :size]
    # No smaller: of few bits many lie midway, where the interpreter does not round to even.
    x[1], x[2] = 0.0, x[2] * 1e-3
    for by_columns in (False, True):
        found = groups_of(x, LEAST, by_columns=by_columns, rows=rows)
        assert found.numbers.shape == (rows, size)
        assert found.scales.shape[:: -1 if by_columns else 1] == (rows, -(-size // GROUP))
        assert_groups(found, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [48, 1024, 12_288])
def test_groups_are_those_of_the_product(size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    joint = torch.randn(6, 2 * size + 16, generator=generator, device=DEVICE).to(dtype) * 3
    gate, up = joint[:, :size], joint[:, size : 2 * size]
    gate[1], up[2], gate[3, 5], gate[4] = 0.0, 0.0, -300.0, 300.0
    wide = torch.nn.functional.silu(gate.float()) * up.float()
    assert_groups(groups_of(gate, LEAST, up=up, by_columns=True, rows=8), wide)


def test_what_is_no_number_is_not_lost() -> None:
    x = torch.ones(3, 300, device=DEVICE)
    x[1, 7], x[2, 290] = float("nan"), float("inf")
    finite = groups_of(x, LEAST).scales.isfinite()
    assert finite.tolist() == [[True] * 3, [False, True, True], [True, True, False]]


def test_no_rows_are_none() -> None:
    found = groups_of(torch.empty(0, 256, device=DEVICE), LEAST)
    assert found.numbers.shape == (0, 256) and found.scales.shape == (0, 2)
