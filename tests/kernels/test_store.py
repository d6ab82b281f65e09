"""Keys and values land in their slots, and nowhere else."""

from __future__ import annotations

import pytest
import torch

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


def test_refuses_other_shapes() -> None:
    k = torch.zeros(2, 3, 64, device=DEVICE)
    cache = torch.zeros(4, 16, 3, 64, device=DEVICE)
    with pytest.raises(AssertionError):
        store(k, k, cache, cache, torch.zeros(3, dtype=torch.int64, device=DEVICE))
