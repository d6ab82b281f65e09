"""Rotating queries and keys against what models compute."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model import interface
from sharegen.engine.model.fp8.products import E4M3
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.rotate import rotate, rotate_and_store
from sharegen.kernels.store import store, store_fp8
from tests.kernels.trees import DEVICE, assert_close, each_dtype


@each_dtype
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(32, 8, 128), (4, 4, 64), (3, 1, 80), (12, 5, 6), (1, 1, 256)]
)
def test_both_are_rotated(heads: int, kv_heads: int, size: int, dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype) / 4

    joint = normal(5, (heads + kv_heads) * size + 8)
    q = joint[:, : heads * size].view(5, heads, size)
    k = joint[:, heads * size : (heads + kv_heads) * size].view(5, kv_heads, size)
    cos, sin = normal(5, size), normal(5, size + 2)[:, :size]
    wide = (x.double().cpu() for x in (q, k, cos, sin))
    expected = interface.rotate(next(wide), next(wide), (next(wide), next(wide)))
    for found, right in zip(rotate(q, k, cos, sin), expected, strict=True):
        assert found.is_contiguous()
        assert_close(found, right.to(DEVICE))


def caches(rows: int, heads: int, size: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """Two caches of NaN, with more slots than rows, and slots of which one is none."""
    blocks = rows // 4 + 2
    pool = torch.full((blocks, 4, heads, 2 * size), float("nan"), dtype=dtype, device=DEVICE)
    slots = torch.randperm(blocks * 4, generator=torch.Generator().manual_seed(2))[:rows]
    slots[1] = -1
    return [pool[..., :size], pool[..., size:], slots.to(DEVICE)]


def rotated_and_stored(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, v, cos, sin, of which some values and a key are not finite."""
    generator = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)

    joint = normal(9, 12, 80)
    q, k, v = joint[:, :6], joint[:, 6:9], joint[:, 9:]
    v[3, 1, 5], v[4, 2, 70], k[5, 0, 7] = torch.nan, -torch.inf, torch.inf
    return q, k, v, normal(9, 80), normal(9, 80)


@each_dtype
def test_keys_are_rotated_into_their_slots(dtype: torch.dtype) -> None:
    q, k, v, cos, sin = rotated_and_stored(dtype)
    *mine, slots = caches(9, 3, 80, dtype)
    *theirs, _ = caches(9, 3, 80, dtype)
    out = rotate_and_store(q, k, v, cos, sin, (mine[0], mine[1]), slots)
    expected, k = rotate(q, k, cos, sin)
    store(k, v, *theirs, slots)
    assert torch.equal(out, expected)
    for found, cache in zip(mine, theirs, strict=True):
        assert torch.equal(found.nan_to_num(7.0), cache.nan_to_num(7.0))


@each_dtype
def test_keys_are_rotated_into_fp8_slots(dtype: torch.dtype) -> None:
    q, k, v, cos, sin = rotated_and_stored(dtype)
    slots = caches(9, 3, 80, dtype)[2]
    pools = [torch.zeros(4, 4, 3, 160, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    exponents = [torch.zeros(4, 3, 2, 4, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    mine, theirs = (
        FP8Blocks(pool[..., :80].view(E4M3), pool[..., 80:].view(E4M3), scales)
        for pool, scales in zip(pools, exponents, strict=True)
    )
    out = rotate_and_store(q, k, v, cos, sin, mine, slots)
    expected, k = rotate(q, k, cos, sin)
    store_fp8(k, v, theirs, slots)
    assert torch.equal(out, expected)
    assert torch.equal(*pools) and torch.equal(*exponents)
