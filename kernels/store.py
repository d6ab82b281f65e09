"""New keys and values into their slots of the KV cache: reshape and write in one launch."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels import fp8_blocks
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.tiles import padded

NAN = tl.constexpr(fp8_blocks.NAN)
_ABOVE = tl.constexpr(fp8_blocks.ABOVE)
_LESS = tl.constexpr(fp8_blocks.LESS)
_HEADS = 8  # of a program that stores FP8 keys and values: one each are too many programs


@triton.jit
def is_finite(x):
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
        k = tl.where(is_finite(v), k, float("nan"))
    p_k = k_cache_ptr + block * stride_kb + offset * stride_kt + head * stride_kc + d
    tl.store(p_k, k, mask=real)

    head, d = i // VALUE_SIZE, i % VALUE_SIZE
    real = (i < NUM_HEADS * VALUE_SIZE) & (slot >= 0)
    v = tl.load(v_ptr + row * stride_vr + head * stride_vh + d, mask=real, other=0.0)
    v = tl.where(is_finite(v), v, 0.0)
    p_v = v_cache_ptr + block * stride_vb + offset * stride_vt + head * stride_vc + d
    tl.store(p_v, v, mask=real)


def store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:  # fmt: skip
    """Put keys and values into their slots of the caches.

    Values in the cache are finite: where one is not it becomes 0, and something of its key NaN (see
    `reference.store`).

    Args:
        k, v: [T, num_kv_heads, *].
        k_cache, v_cache: [blocks, block_size, num_kv_heads, *].
        slots: [T] int32 or int64; a row with a negative slot is left out.
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


@triton.jit
def odd_numbers(x):
    """[heads] how many numbers of x [heads, D] are not finite."""
    return tl.sum(tl.where(is_finite(x), 0, 1), 1)


@triton.jit
def bounded(k, v, odd, largest):
    """k, v [heads, D] in float32, without what an FP8 cache does not hold; odd: [heads]."""
    k = tl.where(odd[:, None], 0.0, k)
    return k, tl.where(odd[:, None], 0.0, tl.minimum(tl.maximum(v, -largest), largest))


@triton.jit
def greatest(x):
    """[heads] the largest of x [heads, D] without signs, which is finite."""
    return tl.max(tl.abs(x), 1)


@triton.jit
def exponents_of(largest, LEAST: tl.constexpr):
    """[heads] of the scales with which numbers up to these [heads], in float32, are e4m3's."""
    bits = largest.to(tl.int32, bitcast=True)
    return tl.maximum(((bits + _ABOVE) >> 23) - _LESS, LEAST)


@triton.jit
def bits_of(x, exponents):
    """The bits of e4m3 numbers: x / 2^(exponent - 127), rounded to the nearest.

    A float32 that is smaller by 2^120 has its exponent where e4m3 has it, below the least one too.
    """
    scaled = x * ((254 - exponents) << 23).to(tl.float32, bitcast=True)[:, None]
    bits = (tl.abs(scaled) * 7.52316384526264e-37).to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20
    return tl.where(x < 0, bits | 0x80, bits).to(tl.uint8)


@triton.jit
def _store_fp8_kernel(
    k_ptr, v_ptr, keys_ptr, values_ptr, exponents_ptr, slots_ptr,
    stride_kr, stride_kh, stride_vr, stride_vh,
    stride_kb, stride_kt, stride_kc, stride_vb, stride_vt, stride_vc, largest,
    NUM_HEADS: tl.constexpr, KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_DK: tl.constexpr,
    BLOCK_DV: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    block = slot // BLOCK_SIZE
    offset = slot % BLOCK_SIZE
    o_dk = tl.arange(0, BLOCK_DK)[None, :]
    o_dv = tl.arange(0, BLOCK_DV)[None, :]
    real = (head < NUM_HEADS) & (slot >= 0)
    k_real = real[:, None] & (o_dk < KEY_SIZE)
    v_real = real[:, None] & (o_dv < VALUE_SIZE)
    of_head = head[:, None]
    k = tl.load(k_ptr + row * stride_kr + of_head * stride_kh + o_dk, mask=k_real, other=0.0)
    v = tl.load(v_ptr + row * stride_vr + of_head * stride_vh + o_dv, mask=v_real, other=0.0)
    k, v = k.to(tl.float32), v.to(tl.float32)
    odd = (odd_numbers(k) + odd_numbers(v)) > 0
    k, v = bounded(k, v, odd, largest)
    k_exponents = exponents_of(greatest(k), LEAST)
    v_exponents = exponents_of(greatest(v), LEAST)
    p_k = keys_ptr + block * stride_kb + offset * stride_kt + of_head * stride_kc + o_dk
    p_v = values_ptr + block * stride_vb + offset * stride_vt + of_head * stride_vc + o_dv
    tl.store(p_k, bits_of(k, k_exponents), mask=k_real)
    tl.store(p_v, bits_of(v, v_exponents), mask=v_real)
    p_exponents = exponents_ptr + (block * NUM_HEADS + head) * 2 * BLOCK_SIZE + offset
    tl.store(p_exponents, tl.where(odd, NAN, k_exponents).to(tl.uint8), mask=real)
    tl.store(p_exponents + BLOCK_SIZE, v_exponents.to(tl.uint8), mask=real)


def store_fp8(k: torch.Tensor, v: torch.Tensor, cache: FP8Blocks, slots: torch.Tensor) -> None:
    """Put keys and values into their slots of FP8 blocks.

    A head with a number that is not finite has a key of NaN, and 0 as its values (see
    `reference.store_fp8`).

    Args:
        k, v: [T, num_kv_heads, *].
        cache: one layer's FP8 blocks.
        slots: [T] int32 or int64; a row with a negative slot is left out.
    """
    num_rows, num_heads, key_size = k.shape
    value_size = v.shape[-1]
    assert v.shape[:2] == k.shape[:2] and slots.shape == (num_rows,) and slots.is_contiguous()
    assert cache.keys.shape[2:] == k.shape[1:] and cache.values.shape[2:] == v.shape[1:]
    assert cache.exponents.shape[1:] == (num_heads, 2, cache.keys.shape[1])
    assert cache.exponents.is_contiguous() and k.dtype == v.dtype
    for tensor in (k, v, cache.keys, cache.values):
        assert tensor.stride(-1) == 1
    block_h = min(_HEADS, 1 << (num_heads - 1).bit_length())
    _store_fp8_kernel[(num_rows, triton.cdiv(num_heads, block_h))](
        k, v, cache.keys.view(torch.uint8), cache.values.view(torch.uint8), cache.exponents, slots,
        *k.stride()[:2], *v.stride()[:2], *cache.keys.stride()[:3], *cache.values.stride()[:3],
        fp8_blocks.largest_value(k.dtype),
        NUM_HEADS=num_heads, KEY_SIZE=key_size, VALUE_SIZE=value_size,
        BLOCK_SIZE=cache.keys.shape[1], BLOCK_H=block_h,
        BLOCK_DK=padded(key_size), BLOCK_DV=padded(value_size),
        LEAST=fp8_blocks.least_exponent(k.dtype), num_warps=max(1, block_h // 2),
    )  # fmt: skip
