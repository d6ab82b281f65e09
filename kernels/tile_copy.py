"""Tiles of the KV cache by the copy engine (TMA, from Hopper on): one instruction for a tile."""

from __future__ import annotations

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from sharegen.kernels.tiles import padded


def is_flat(cache: torch.Tensor) -> bool:
    """Whether the slot after a block's last one is the next block's first one."""
    return cache.stride(0) == cache.shape[1] * cache.stride(1)


def copies_tiles(cache: torch.Tensor) -> bool:
    """Whether the copy engine can fetch tiles of consecutive slots of the cache."""
    if cache.device.type == "cuda" and torch.cuda.get_device_capability(cache.device)[0] < 9:
        return False
    strides = [stride * cache.element_size() % 16 for stride in cache.stride()[:3]]
    return is_flat(cache) and cache.data_ptr() % 16 == 0 and not any(strides)


def descriptor(cache: torch.Tensor, keys: int) -> TensorDescriptor:
    """The cache as [num_kv_heads, slots, head_size], cut into tiles of `keys` slots of one head.

    What lies beyond the head size, up to the tile's width, reads as 0.
    """
    num_blocks, block_size, num_heads, size = cache.shape
    return TensorDescriptor(
        cache, [num_heads, num_blocks * block_size, size],
        [cache.stride(2), cache.stride(1), 1], [1, keys, padded(size)],
    )  # fmt: skip
