"""Sums of two GPUs' numbers, against torch's."""

from __future__ import annotations

import pytest
import torch

from sharegen.kernels.peer_sum import add_peers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("count", [1, 2048, 5000])
def test_every_sum_is_rounded_as_torch_rounds_it(count: int, dtype: torch.dtype) -> None:
    torch.manual_seed(count)
    own, other, base = (torch.randn(count, device=DEVICE).to(dtype) for _ in range(3))
    out = torch.empty_like(own)
    add_peers(own, other, None, out)
    assert torch.equal(out, own + other)
    add_peers(other, own, None, out)
    assert torch.equal(out, own + other)
    add_peers(own, other, base, out)
    assert torch.equal(out, base + (own + other))
