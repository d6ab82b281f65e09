"""A gated MLP's first product: as one kernel on Hopper cards, and the activation by itself."""

from __future__ import annotations

import pytest
import torch

from sharegen.kernels import gated_product as kernels
from sharegen.kernels.roles import is_hopper
from tests.kernels.trees import DEVICE

DTYPES = [torch.float16, torch.float32]
if DEVICE.type == "cuda":
    DTYPES.append(torch.bfloat16)

on_hopper = pytest.mark.skipif(not is_hopper(DEVICE), reason="needs a Hopper card")


def reference(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.float().chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [8, 1024, 1500])
def test_the_activation(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)
    both = (torch.randn(5, 2 * width, generator=generator, device=DEVICE) * 3).to(dtype)
    both[0, :width], both[1, 0], both[2, 1] = 0.0, -300.0, 300.0
    expected = reference(both).to(dtype)
    torch.testing.assert_close(kernels.gated(both), expected)


def drawn(rows: int, size: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(rows, size, generator=generator, device=DEVICE)
    weight = torch.randn(2 * width, size, generator=generator, device=DEVICE) / size**0.5
    return x.bfloat16(), weight.bfloat16()


@on_hopper
@pytest.mark.parametrize("rows", [1, 511, 512, 1024, 1100, 5000])
@pytest.mark.parametrize(("size", "width"), [(4096, 14_336), (896, 4864), (200, 136), (72, 8)])
def test_the_product_is_the_library_s_to_the_bit(rows: int, size: int, width: int) -> None:
    x, weight = drawn(rows, size, width)
    assert kernels.suits(x, weight)
    expected = kernels.gated(torch.nn.functional.linear(x, weight))
    assert torch.equal(kernels.gated_product(x, weight), expected)


@on_hopper
def test_rows_that_do_not_lie_together_and_numbers_that_are_none() -> None:
    x, weight = drawn(2048, 512, 256)
    x[600], x[601], x[602, 3] = 0.0, float("inf"), float("nan")
    expected = kernels.gated(torch.nn.functional.linear(x[::2], weight))
    found = kernels.gated_product(x[::2], weight)
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@on_hopper
def test_what_it_is_not_for() -> None:
    x, weight = drawn(1024, 512, 256)
    assert not kernels.suits(x.half(), weight.half())
    assert not kernels.suits(x[:, :508], weight[:, :508].contiguous())  # 8 bytes too few
    assert not kernels.suits(x, weight[:504])
