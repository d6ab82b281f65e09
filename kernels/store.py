"""New keys and values into their slots of the KV cache: reshape and write in one launch."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _is_finite(x):
    return tl.abs(x.to(tl.float32)) < float("inf")


@triton.jit
def _store_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slots_ptr,
    stride_kr, stride_kh, stride_vr, stride_vh,
    stride_kb, stride_kt, stride_kc, stride_vb, stride_vt, stride_vc,
    NUM_HEADS: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)

    head, d = i // KEY_SIZE, i % KEY_SIZE
    real = (i < NUM_HEADS * KEY_SIZE) & (slot >= 0)
    k = tl.load(k_ptr + row * stride_kr + head * stride_kh + d, mask=real)
    # Together a head's keys look at all of its values.
    for first in tl.static_range(0, VALUE_SIZE, KEY_SIZE):
        o_v = tl.minimum(first + d, VALUE_SIZE - 1)
        v = tl.load(v_ptr + row * stride_vr + head * stride_vh + o_v, mask=real, other=0.0)
        k = tl.where(_is_finite(v), k, float("nan"))
    p_k = k_cache_ptr + block * stride_kb + offset * stride_kt + head * stride_kc + d
    tl.store(p_k, k, mask=real)

    head, d = i // VALUE_SIZE, i % VALUE_SIZE
    real = (i < NUM_HEADS * VALUE_SIZE) & (slot >= 0)
    v = tl.load(v_ptr + row * stride_vr + head * stride_vh + d, mask=real, other=0.0)
    v = tl.where(_is_finite(v), v, 0.0)
    p_v = v_cache_ptr + block * stride_vb + offset * stride_vt + head * stride_vc + d
    tl.store(p_v, v, mask=real)


def store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:  # fmt: skip
    """Put k, v [T, num_kv_heads, *] into their slots [T] of the caches [blocks, block, heads, *].

    slots: int32 or int64; a row with a negative slot is left out. Values in the cache are finite:
    where one is not it becomes 0, and something of its key NaN (see `reference.store`).
    """
    num_rows, num_heads, key_size = k.shape
    value_size = v.shape[-1]
    assert v.shape[:2] == k.shape[:2] and slots.shape == (num_rows,) and slots.is_contiguous()
    assert k_cache.shape[2:] == k.shape[1:] and v_cache.shape[2:] == v.shape[1:]
    for tensor in (k, v, k_cache, v_cache):
        assert tensor.stride(-1) == 1 and tensor.dtype == k.dtype
    size = num_heads * max(key_size, value_size)
    block = min(1024, 1 << (size - 1).bit_length())
    _store_kernel[(num_rows, triton.cdiv(size, block))](
        k, v, k_cache, v_cache, slots, *k.stride()[:2], *v.stride()[:2],
        *k_cache.stride()[:3], *v_cache.stride()[:3],
        NUM_HEADS=num_heads, KEY_SIZE=key_size, VALUE_SIZE=value_size,
        BLOCK_SIZE=k_cache.shape[1], BLOCK=block, num_warps=4,
    )  # fmt: skip
