"""Rotary position embedding of a step's queries and keys in one launch (RoFormer, 2104.09864).

A head's two halves are rotated against each other, as in Llama. The compiler writes a kernel each
for queries and keys, and reads every number where it is and again where the other half needs it.
Keys that nobody wants but the cache go there at once, with their values.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels import fp8_blocks
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.store import (
    NAN,
    bits_of,
    bounded,
    exponents_of,
    greatest,
    is_finite,
    odd_numbers,
)
from sharegen.kernels.tiles import padded

_NUMBERS = 1024  # of a program


@triton.jit
def _angles(cos_ptr, sin_ptr, o, HALF: tl.constexpr):
    """cos and sin of a row, [1, BLOCK] of each half."""
    real = o < HALF
    cos_1 = tl.load(cos_ptr + o, mask=real, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos_ptr + HALF + o, mask=real, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin_ptr + o, mask=real, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin_ptr + HALF + o, mask=real, other=0.0).to(tl.float32)
    return cos_1[None, :], cos_2[None, :], sin_1[None, :], sin_2[None, :]


@triton.jit
def _rotated(p_x, real, cos_1, cos_2, sin_1, sin_2, HALF: tl.constexpr):
    """Both halves of heads, rounded as they would be written."""
    x_1 = tl.load(p_x, mask=real, other=0.0)
    x_2 = tl.load(p_x + HALF, mask=real, other=0.0)
    dtype = x_1.dtype
    x_1, x_2 = x_1.to(tl.float32), x_2.to(tl.float32)
    return (x_1 * cos_1 - x_2 * sin_1).to(dtype), (x_2 * cos_2 + x_1 * sin_2).to(dtype)


@triton.jit
def _rotate_heads(
    x_ptr, out_ptr, stride_xh, head, o, cos_1, cos_2, sin_1, sin_2,
    NUM_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    real = (head < NUM_HEADS)[:, None] & (o < HALF)[None, :]
    p_x = x_ptr + (head * stride_xh)[:, None] + o[None, :]
    x_1, x_2 = _rotated(p_x, real, cos_1, cos_2, sin_1, sin_2, HALF)
    p_out = out_ptr + (head * (2 * HALF))[:, None] + o[None, :]
    tl.store(p_out, x_1, mask=real)
    tl.store(p_out + HALF, x_2, mask=real)


@triton.jit
def _rotate_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr,
    stride_qr, stride_qh, stride_kr, stride_kh, stride_cos, stride_sin,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    groups_of_q: tl.constexpr = (NUM_HEADS + BLOCK_H - 1) // BLOCK_H
    o = tl.arange(0, BLOCK)
    cos_1, cos_2, sin_1, sin_2 = _angles(
        cos_ptr + row * stride_cos, sin_ptr + row * stride_sin, o, HALF
    )
    head = tl.arange(0, BLOCK_H)
    if group < groups_of_q:
        _rotate_heads(
            q_ptr + row * stride_qr, q_out_ptr + row * (NUM_HEADS * 2 * HALF), stride_qh,
            group * BLOCK_H + head, o, cos_1, cos_2, sin_1, sin_2, NUM_HEADS, HALF,
        )  # fmt: skip
    else:
        _rotate_heads(
            k_ptr + row * stride_kr, k_out_ptr + row * (NUM_KV_HEADS * 2 * HALF), stride_kh,
            (group - groups_of_q) * BLOCK_H + head, o, cos_1, cos_2, sin_1, sin_2,
            NUM_KV_HEADS, HALF,
        )  # fmt: skip


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys by their positions: x cos + (-x2, x1) sin, where x = (x1, x2).

    Results are rounded once, at the end.

    Args:
        q: [T, num_heads, D] with an even D; its last dimension is dense.
        k: [T, num_kv_heads, D], likewise.
        cos, sin: [T, D].

    Returns:
        The rotated q and k, which are contiguous.
    """
    _check(q, k, cos, sin)
    out = q.new_empty(q.shape), k.new_empty(k.shape)
    grid, sizes = _work(q, k)
    _rotate_kernel[grid](
        q, k, cos, sin, *out, *q.stride()[:2], *k.stride()[:2], cos.stride(0), sin.stride(0),
        **sizes, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_and_store_kernel(
    q_ptr, k_ptr, v_ptr, cos_ptr, sin_ptr, q_out_ptr, k_cache_ptr, v_cache_ptr, exponents_ptr,
    slots_ptr,
    stride_qr, stride_qh, stride_kr, stride_kh, stride_vr, stride_vh, stride_cos, stride_sin,
    stride_kb, stride_kt, stride_kc, stride_vb, stride_vt, stride_vc, largest,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, FP8: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    groups_of_kv: tl.constexpr = (NUM_KV_HEADS + BLOCK_H - 1) // BLOCK_H
    o = tl.arange(0, BLOCK)
    cos_1, cos_2, sin_1, sin_2 = _angles(
        cos_ptr + row * stride_cos, sin_ptr + row * stride_sin, o, HALF
    )
    head = tl.arange(0, BLOCK_H)
    if group >= groups_of_kv:  # these have less to do, and so end all of it
        _rotate_heads(
            q_ptr + row * stride_qr, q_out_ptr + row * (NUM_HEADS * 2 * HALF), stride_qh,
            (group - groups_of_kv) * BLOCK_H + head, o, cos_1, cos_2, sin_1, sin_2,
            NUM_HEADS, HALF,
        )  # fmt: skip
    else:
        head += group * BLOCK_H
        slot = tl.load(slots_ptr + row).to(tl.int64)
        block = slot // BLOCK_SIZE
        offset = slot % BLOCK_SIZE
        kept = (head < NUM_KV_HEADS) & (slot >= 0)
        real = kept[:, None] & (o < HALF)[None, :]
        p_k = k_ptr + row * stride_kr + (head * stride_kh)[:, None] + o[None, :]
        k_1, k_2 = _rotated(p_k, real, cos_1, cos_2, sin_1, sin_2, HALF)
        p_v = v_ptr + row * stride_vr + (head * stride_vh)[:, None] + o[None, :]
        v_1 = tl.load(p_v, mask=real, other=0.0)
        v_2 = tl.load(p_v + HALF, mask=real, other=0.0)
        p_k = k_cache_ptr + block * stride_kb + offset * stride_kt
        p_v = v_cache_ptr + block * stride_vb + offset * stride_vt
        p_k += (head * stride_kc)[:, None] + o[None, :]
        p_v += (head * stride_vc)[:, None] + o[None, :]
        if FP8:
            k_1, k_2 = k_1.to(tl.float32), k_2.to(tl.float32)
            v_1, v_2 = v_1.to(tl.float32), v_2.to(tl.float32)
            odd = odd_numbers(k_1) + odd_numbers(k_2) + odd_numbers(v_1) + odd_numbers(v_2) > 0
            k_1, v_1 = bounded(k_1, v_1, odd, largest)
            k_2, v_2 = bounded(k_2, v_2, odd, largest)
            k_exponents = exponents_of(tl.maximum(greatest(k_1), greatest(k_2)), LEAST)
            v_exponents = exponents_of(tl.maximum(greatest(v_1), greatest(v_2)), LEAST)
            k_1, k_2 = bits_of(k_1, k_exponents), bits_of(k_2, k_exponents)
            v_1, v_2 = bits_of(v_1, v_exponents), bits_of(v_2, v_exponents)
            p_exponents = exponents_ptr + (block * NUM_KV_HEADS + head) * 2 * BLOCK_SIZE + offset
            tl.store(p_exponents, tl.where(odd, NAN, k_exponents).to(tl.uint8), mask=kept)
            tl.store(p_exponents + BLOCK_SIZE, v_exponents.to(tl.uint8), mask=kept)
        else:
            k_1 = tl.where(is_finite(v_1), k_1, float("nan"))
            k_2 = tl.where(is_finite(v_2), k_2, float("nan"))
            v_1, v_2 = tl.where(is_finite(v_1), v_1, 0.0), tl.where(is_finite(v_2), v_2, 0.0)
        tl.store(p_k, k_1, mask=real)
        tl.store(p_k + HALF, k_2, mask=real)
        tl.store(p_v, v_1, mask=real)
        tl.store(p_v + HALF, v_2, mask=real)


def rotate_and_store(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor] | FP8Blocks,
    slots: torch.Tensor,
) -> torch.Tensor:
    """Rotate as `rotate` does, and put the rotated keys and the values into the cache.

    Args:
        q: [T, num_heads, D].
        k, v: [T, num_kv_heads, D].
        cos, sin: as `rotate` takes them.
        cache: keys and values [blocks, block_size, num_kv_heads, D], or FP8 blocks.
        slots: [T], as `store` and `store_fp8` take them.

    Returns:
        The rotated q.
    """
    _check(q, k, cos, sin)
    assert v.shape == k.shape and v.stride(-1) == 1 and v.dtype == k.dtype
    assert slots.shape == (len(q),) and slots.is_contiguous()
    if isinstance(cache, FP8Blocks):
        exponents = cache.exponents
        keys, values = cache.keys.view(torch.uint8), cache.values.view(torch.uint8)
        assert exponents.is_contiguous() and exponents.shape[1:] == (k.shape[1], 2, keys.shape[1])
    else:
        keys, values = cache
        exponents = slots
        assert keys.dtype == values.dtype == k.dtype
    for blocks in (keys, values):
        assert blocks.shape[2:] == k.shape[1:] and blocks.stride(-1) == 1
    out = q.new_empty(q.shape)
    grid, sizes = _work(q, k)
    _rotate_and_store_kernel[grid](
        q, k, v, cos, sin, out, keys, values, exponents, slots,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], cos.stride(0), sin.stride(0),
        *keys.stride()[:3], *values.stride()[:3], fp8_blocks.largest_value(k.dtype),
        **sizes, BLOCK_SIZE=keys.shape[1], FP8=isinstance(cache, FP8Blocks),
        LEAST=fp8_blocks.least_exponent(k.dtype), num_warps=4,
    )  # fmt: skip
    return out


def _check(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    count, _, size = q.shape
    assert k.shape[::2] == (count, size) and cos.shape == sin.shape == (count, size)
    assert size % 2 == 0 and all(x.stride(-1) == 1 for x in (q, k, cos, sin))


def _work(q: torch.Tensor, k: torch.Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid and sizes of the kernels: a program has some heads of a row's queries or keys."""
    count, num_heads, size = q.shape
    num_kv_heads = k.shape[1]
    block = padded(size // 2)
    block_h = max(1, min(_NUMBERS // (2 * block), triton.next_power_of_2(num_heads)))
    groups = triton.cdiv(num_heads, block_h) + triton.cdiv(num_kv_heads, block_h)
    return (count, groups), {
        "NUM_HEADS": num_heads, "NUM_KV_HEADS": num_kv_heads, "HALF": size // 2,
        "BLOCK_H": block_h, "BLOCK": block,
    }  # fmt: skip
