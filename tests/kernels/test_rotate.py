"""Rotating queries and keys against what models compute."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.rotating import _rotated
from sharegen.kernels.rotate import rotate
from tests.kernels.trees import DEVICE, assert_close, each_dtype


@each_dtype
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(32, 8, 128), (4, 4, 64), (3, 1, 80), (12, 5, 6), (1, 1, 256)]
)
def test_both_are_rotated(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)

    joint = normal(5, (heads + kv_heads) * size + 8)
    q = joint[:, : heads * size].view(5, heads, size)
    k = joint[:, heads * size : (heads + kv_heads) * size].view(5, kv_heads, size)
    cos, sin = normal(5, size), normal(5, size + 2)[:, :size]
    for x, found in zip((q, k), rotate(q, k, cos, sin), strict=True):
        assert found.is_contiguous()
        assert_close(found, _rotated(x.double(), cos.double(), sin.double()))
