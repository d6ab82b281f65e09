"""Experts in MXFP4 on a GPU: the trial at load, and sizes of gpt-oss-120b."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sharegen.engine.model.fp4.numbers import rounded, widened
from sharegen.engine.model.fp4.products import check_fp4_products, multiply_fp4_groups
from sharegen.kernels.fp4_words import LARGEST_SCALE, pack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def test_there_are_such_products() -> None:
    check_fp4_products(torch.device("cuda"), torch.bfloat16)


@pytest.mark.parametrize("tokens", [1, 32, 256, 1024])
@pytest.mark.parametrize("size", [(5760, 2880), (2880, 2880)])
def test_experts_of_gpt_oss(size: tuple[int, int], tokens: int) -> None:
    experts, each = 32, 4
    weight = torch.randn(experts, *size, device="cuda") * 0.02
    blocks, scales = rounded(weight, LARGEST_SCALE)
    words, fours = pack(blocks, scales)
    chosen = torch.rand(tokens, experts, device="cuda").topk(each).indices
    chosen[:, 0] = 5  # one that has them all
    expert, order = chosen.flatten().sort(stable=True)
    ends = expert.bincount(minlength=experts).cumsum(0).int()
    x = torch.randn(tokens, size[1], device="cuda", dtype=torch.bfloat16)
    found = multiply_fp4_groups(x, words, fours, ends, order // each)
    in_order = multiply_fp4_groups(x[order // each], words, fours, ends)
    assert torch.equal(found, in_order)
    start = 0
    for own, factors, end in zip(blocks, scales, ends.tolist(), strict=True):
        meant = functional.linear(x[order[start:end] // each].float(), widened(own, factors))
        assert (found[start:end].float() - meant).norm() <= 0.005 * meant.norm()
        start = end


@pytest.mark.parametrize("tokens", [64, 256, 1024, 8192])
def test_products_are_the_same_each_time(tokens: int) -> None:
    """Beside copies that take the memory's time, so that loads end late."""
    experts, size = 128, (5760, 2880)
    words = torch.randint(-(2**15), 2**15, (experts, size[0], 736), device="cuda").short()
    scales = torch.full((experts, 23, size[0]), 0x7A7A7A7A, dtype=torch.int32, device="cuda")
    expert, order = torch.randint(experts, (tokens * 4,), device="cuda").sort(stable=True)
    ends = expert.bincount(minlength=experts).cumsum(0).int()
    x = torch.randn(tokens, size[1], device="cuda", dtype=torch.bfloat16)
    first = multiply_fp4_groups(x, words, scales, ends, order // 4)
    beside, memory = torch.cuda.Stream(), torch.empty(2**29, dtype=torch.uint8, device="cuda")
    for _ in range(20):
        with torch.cuda.stream(beside):
            memory[2**28 :].copy_(memory[: 2**28])
        assert torch.equal(first, multiply_fp4_groups(x, words, scales, ends, order // 4))
