"""Keys and values land in their slots, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sharegen.kernels import reference
from sharegen.kernels.store import store
from tests.kernels.trees import DEVICE, each_dtype


@each_dtype
@pytest.mark.parametrize("sizes", [(64, 64), (80, 80), (192, 128)])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_store(sizes: tuple[int, int], index: torch.dtype, dtype: torch.dtype) -> None:
    rows, heads, blocks, block_size = 9, 3, 7, 16
    # as models pass them: heads first, and keys and values parts of one product
    k = torch.randn(heads, rows, sizes[0] + 8, device=DEVICE).to(dtype)[..., :-8].transpose(0, 1)
    v = torch.randn(heads, rows, sizes[1], device=DEVICE).to(dtype).transpose(0, 1)
    pool = torch.full((2, blocks, block_size, heads, max(sizes)), float("nan"), device=DEVICE)
    k_cache, v_cache = pool.to(dtype)[0][..., : sizes[0]], pool.to(dtype)[1][..., : sizes[1]]
    slots = torch.randperm(blocks * block_size, device=DEVICE)[:rows].to(index)
    slots[4] = -1
    store(k, v, k_cache, v_cache, slots)

    for cache, values in ((k_cache, k), (v_cache, v)):
        flat = cache.view(-1, *cache.shape[2:])
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                assert torch.equal(flat[slot], values[row])
                flat[slot] = float("nan")
        assert flat.isnan().all()


@each_dtype
@pytest.mark.parametrize("store", [store, reference.store], ids=["kernel", "reference"])
@pytest.mark.parametrize("sizes", [(64, 64), (48, 32), (32, 80)])
def test_values_in_the_cache_are_finite(
    sizes: tuple[int, int], store: Callable[..., None], dtype: torch.dtype
) -> None:
    """A token whose values are not has a key of NaN, in that head; keys are not looked at."""
    k = torch.randn(5, 2, sizes[0], device=DEVICE).to(dtype)
    v = torch.randn(5, 2, sizes[1], device=DEVICE).to(dtype)
    v[1, 0, 3], v[2, 1, -1], v[3, 0, sizes[1] // 2] = torch.nan, torch.inf, -torch.inf
    k[4, 1, 0] = torch.inf
    k_cache = torch.zeros(1, 16, 2, sizes[0], device=DEVICE).to(dtype)
    v_cache = torch.zeros(1, 16, 2, sizes[1], device=DEVICE).to(dtype)
    store(k, v, k_cache, v_cache, torch.arange(5, device=DEVICE))
    bad = ~v.isfinite().all(-1)
    assert torch.equal(k_cache[0, :5].isnan().any(-1), bad)
    assert torch.equal(k_cache[0, :5][~bad], k[~bad])
    assert torch.equal(v_cache[0, :5], v.where(v.isfinite(), 0.0)) or store is reference.store
    assert torch.equal(v_cache[0, :5][~bad], v[~bad]) and v_cache.isfinite().all()


def test_refuses_other_shapes() -> None:
    k = torch.zeros(2, 3, 64, device=DEVICE)
    cache = torch.zeros(4, 16, 3, 64, device=DEVICE)
    with pytest.raises(AssertionError):
        store(k, k, cache, cache, torch.zeros(3, dtype=torch.int64, device=DEVICE))
