"""FP8 by blocks on a GPU: the library's product against the same numbers multiplied in float32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from sharegen.engine.model.fp8.blocks import (
    BLOCK,
    check_block_products,
    multiply_block_groups,
    multiply_blocks,
    quantise_groups,
    widened,
    widened_groups,
)
from sharegen.engine.model.fp8.products import E4M3

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """The judge multiplies in float32, not in TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def blocks(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight in e4m3 whose blocks have scales of many sizes.

    e4m3 has no infinity: what is cast to it beyond its largest number becomes NaN.
    """
    largest = torch.finfo(E4M3).max
    weight = torch.randn(rows, columns, device="cuda").mul(100).clamp(-largest, largest).to(E4M3)
    size = (rows // BLOCK, columns // BLOCK)
    return weight, torch.rand(size, device="cuda").mul(6).sub(9).exp2()


def test_there_are_such_products() -> None:
    check_block_products(torch.device("cuda"))


@pytest.mark.parametrize("rows", [1, 7, 16, 320, 1024])
@pytest.mark.parametrize("size", [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)])
def test_a_linear_layer_of_qwen3_8b(size: tuple[int, int], rows: int) -> None:
    weight, scales = blocks(*size)
    x = torch.randn(rows, size[1], device="cuda", dtype=torch.bfloat16)
    meant = functional.linear(widened_groups(*quantise_groups(x)), widened(weight, scales))
    found = multiply_blocks(x, weight, scales).float()
    assert found.shape == meant.shape
    assert (found - meant).norm() <= 0.005 * meant.norm()


def test_a_row_does_not_mind_how_many_there_are() -> None:
    weight, scales = blocks(4096, 4096)
    x = torch.randn(1024, 4096, device="cuda", dtype=torch.bfloat16)
    of_all = multiply_blocks(x, weight, scales)
    for rows in (1, 7, 64, 320):
        error = (multiply_blocks(x[:rows], weight, scales).float() - of_all[:rows].float()).abs()
        assert error.max() <= 2**-7 * of_all.float().abs().max()


@pytest.mark.parametrize("tokens", [1, 32, 256, 1024])
@pytest.mark.parametrize("size", [(1536, 2048), (2048, 768)])
def test_experts_of_qwen3_30b(size: tuple[int, int], tokens: int) -> None:
    experts, each = 128, 8
    made = [blocks(*size) for _ in range(experts)]
    weight, scales = (torch.stack(parts) for parts in zip(*made, strict=True))
    chosen = torch.rand(tokens, experts, device="cuda").topk(each).indices
    chosen[:, 0] = 5  # one that has them all
    expert, order = chosen.flatten().sort(stable=True)
    ends = expert.bincount(minlength=experts).cumsum(0).int()
    x = torch.randn(tokens, size[1], device="cuda", dtype=torch.bfloat16)
    found = multiply_block_groups(x, weight, scales, ends, order // each)
    in_order = multiply_block_groups(x[order // each], weight, scales, ends)
    assert torch.equal(found, in_order)
    rows = widened_groups(*quantise_groups(x))[order // each]
    start = 0
    for own, by, end in zip(weight, scales, ends.tolist(), strict=True):
        meant = functional.linear(rows[start:end], widened(own, by))
        assert (found[start:end].float() - meant).norm() <= 0.005 * meant.norm()
        start = end
