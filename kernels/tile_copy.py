"""Tiles of keys and values, and of FP8 ones' scales, out of the KV cache: gathered or copied.

The copy engine (TMA, from Hopper on) takes one instruction for a tile of consecutive slots.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from sharegen.kernels.fp8_blocks import FP8Blocks
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


def descriptors(
    caches: Sequence[torch.Tensor], keys: int, tma: bool, within_blocks: bool = False
) -> tuple[TensorDescriptor | None, ...]:
    """What the copy engine reads each of the caches by; Nones where it does not (`tma`)."""
    make = block_descriptor if within_blocks else descriptor
    return tuple(make(cache, keys) if tma else None for cache in caches)


def fp8_pointers(
    fp8: FP8Blocks | None, keys: int, tma: bool, within_blocks: bool = False
) -> tuple[object, ...]:
    """Return keys, values and exponents of FP8 blocks, and descriptors of the first two; else
    Nones.
    """
    if fp8 is None:
        return (None,) * 5
    numbers = (fp8.keys, fp8.values)
    return *numbers, fp8.exponents, *descriptors(numbers, keys, tma, within_blocks)


def descriptor(cache: torch.Tensor, keys: int) -> TensorDescriptor:
    """Describe the cache as [num_kv_heads, slots, head_size], cut into tiles of `keys` slots of one
    head.

    What lies beyond the head size, up to the tile's width, reads as 0.
    """
    num_blocks, block_size, num_heads, size = cache.shape
    return TensorDescriptor(
        cache, [num_heads, num_blocks * block_size, size],
        [cache.stride(2), cache.stride(1), 1], [1, keys, padded(size)],
    )  # fmt: skip


def block_descriptor(cache: torch.Tensor, keys: int) -> TensorDescriptor:
    """Describe the cache as [num_kv_heads, num_blocks, block_size, head_size], cut into tiles of
    `keys` slots of one head and one block.

    What lies beyond the block, before or behind it, reads as 0, as what lies beyond the head size.
    """
    num_blocks, block_size, num_heads, size = cache.shape
    return TensorDescriptor(
        cache, [num_heads, num_blocks, block_size, size],
        [cache.stride(2), cache.stride(0), cache.stride(1), 1], [1, 1, keys, padded(size)],
    )  # fmt: skip


@triton.jit
def copy_tile(
    k_desc, v_desc, kv_head, slot,
    BLOCK_N: tl.constexpr, BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Copy the keys and values of the slots from `slot` on, by the copy engine."""
    k = k_desc.load([kv_head, slot, 0]).reshape(BLOCK_N, BLOCK_DK)
    v = v_desc.load([kv_head, slot, 0]).reshape(BLOCK_N, BLOCK_DV)
    return k, v


@triton.jit
def gather_tile(
    k_head_ptr, v_head_ptr, block, offset, real, stride_kb, stride_kt, stride_vb, stride_vt,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Gather the keys and values of tokens wherever they lie, zero where not `real`.

    block, offset, real: [N, 1], or one for all tokens.
    """
    block = tl.cast(block, tl.int64)  # offsets from it on stay in 32 bits, which is faster
    o_dk = tl.arange(0, BLOCK_DK)[None, :]
    o_dv = tl.arange(0, BLOCK_DV)[None, :]
    p_k = k_head_ptr + block * stride_kb + (offset * stride_kt + o_dk)
    p_v = v_head_ptr + block * stride_vb + (offset * stride_vt + o_dv)
    k = tl.load(p_k, mask=real & (o_dk < KEY_SIZE), other=0.0)
    v = tl.load(p_v, mask=real & (o_dv < VALUE_SIZE), other=0.0)
    return k, v


@triton.jit
def _scale(exponent):
    return (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)


@triton.jit
def gather_scales(
    scales_ptr, kv_head, block, offset, real,
    NUM_KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Gather the scales of the keys and of the values of FP8 tokens wherever they lie, [N]; of
    others 1.
    """
    if FP8:
        row = (tl.cast(block, tl.int64) * NUM_KV_HEADS + kv_head) * 2
        p_scales = scales_ptr + row * BLOCK_SIZE + offset
        k = tl.load(p_scales, mask=real, other=0)
        v = tl.load(p_scales + BLOCK_SIZE, mask=real, other=0)
        return _scale(k), _scale(v)
    else:
        return 1.0, 1.0
