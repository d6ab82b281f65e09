"""Host memory for KV blocks: what comes back is what went out, wherever it lies then."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sharegen.engine.core.batch import Swaps
from sharegen.engine.execute import swap_space
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.execute.swap_space import SwapSpace, open_swap_space
from sharegen.engine.model.attention.layer_spec import LayerSpec

LAYERS = [LayerSpec(2, 2, 8, 4, 1.0), LayerSpec(1, 1, 16, 16, 1.0)]
CPU = torch.device("cpu")
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NO_GPU])]


def pairs(*values: tuple[int, int]) -> np.ndarray:
    return np.array(values, dtype=np.int64).reshape(-1, 2)


def filled(block_size: int, blocks_per_full: int, device: torch.device = CPU) -> KVCache:
    cache = KVCache(LAYERS, 12, block_size, torch.float32, device, blocks_per_full)
    for tensor in cache.by_block:
        size = torch.iinfo(tensor.dtype)
        tensor.random_(size.min, size.max)
    return cache


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("blocks_per_full", [1, 4])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_all_layers_come_back(
    block_size: int, blocks_per_full: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales of FP8 and tokens, too; in pieces of two blocks, and chunks of three slots."""
    cache = filled(block_size, blocks_per_full, torch.device(device))
    block = sum(layer.shape[1] * layer.dtype.itemsize for layer in cache.by_block)
    monkeypatch.setattr(swap_space, "_PIECE", 2 * block + 1)
    monkeypatch.setattr(swap_space, "_CHUNK", 3 * block + 1)
    space = SwapSpace(cache, 7)
    before = [tensor.clone() for tensor in cache.by_block]
    blocks, slots, others = [11, 0, 5, 6, 2], [6, 0, 3, 1, 2], [0, 5, 7, 8, 9]
    space.begin(Swaps(pairs(*zip(blocks, slots, strict=True)), pairs()))
    for tensor in cache.by_block:
        tensor[:12] = 0
    space.begin(None)
    space.begin(Swaps(pairs(), pairs(*zip(slots, others, strict=True))))
    space.begin(None)
    for tensor, was in zip(cache.by_block, before, strict=True):
        assert torch.equal(tensor[others], was[blocks])
        untouched = sorted({*range(12)} - {*others})
        assert not tensor[untouched].any() and torch.equal(tensor[12:], was[12:])
    space.begin(Swaps(pairs((7, 6)), pairs((6, 1))))  # out before back, in one batch
    space.begin(None)
    assert all(torch.equal(tensor[1], tensor[7]) for tensor in cache.by_block)
    fixed, a_block = space.seconds()
    assert fixed >= 0 and a_block >= 0 and fixed + a_block > 0
    assert all(torch.equal(t[12:], was[12:]) for t, was in zip(cache.by_block, before, strict=True))


@pytest.mark.parametrize(
    ("gib", "free", "said"),
    [
        (1e-6, 1 << 30, "a block takes 0.0000 GiB: give it more"),
        (1.0, 3000, "0.0 GiB of this machine's memory are free: give it less"),
    ],
)
def test_too_little_memory_is_one_line(
    gib: float, free: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swap_space, "free_memory_of_cpu", lambda: free)
    with pytest.warns(UserWarning, match=f"preempted samples compute their KV again, for {said}"):
        assert open_swap_space(filled(16, 1), 12, gib, None) is None


def test_no_more_than_the_cache_holds() -> None:
    space = open_swap_space(filled(16, 1), 12, 1.0, None)
    assert space is not None and space.num_slots == 12
