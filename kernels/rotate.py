"""Rotary position embedding of a step's queries and keys in one launch (RoFormer, 2104.09864).

A head's two halves are rotated against each other, as in Llama. The compiler writes a kernel each
for queries and keys, and reads every number where it is and again where the other half needs it.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharegen.kernels.tiles import padded

_NUMBERS = 1024  # of a program


@triton.jit
def _rotate_heads(
    x_ptr, out_ptr, stride_xh, first, cos_1, cos_2, sin_1, sin_2,
    NUM_HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head = (first + tl.arange(0, BLOCK_H))[:, None]
    o = tl.arange(0, BLOCK)[None, :]
    real = (head < NUM_HEADS) & (o < HALF)
    p_x = x_ptr + head * stride_xh + o
    x_1 = tl.load(p_x, mask=real, other=0.0).to(tl.float32)
    x_2 = tl.load(p_x + HALF, mask=real, other=0.0).to(tl.float32)
    p_out = out_ptr + head * (2 * HALF) + o
    dtype = out_ptr.dtype.element_ty
    tl.store(p_out, (x_1 * cos_1 - x_2 * sin_1).to(dtype), mask=real)
    tl.store(p_out + HALF, (x_2 * cos_2 + x_1 * sin_2).to(dtype), mask=real)


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
    real = o < HALF
    p_cos, p_sin = cos_ptr + row * stride_cos + o, sin_ptr + row * stride_sin + o
    cos_1 = tl.load(p_cos, mask=real, other=0.0).to(tl.float32)[None, :]
    cos_2 = tl.load(p_cos + HALF, mask=real, other=0.0).to(tl.float32)[None, :]
    sin_1 = tl.load(p_sin, mask=real, other=0.0).to(tl.float32)[None, :]
    sin_2 = tl.load(p_sin + HALF, mask=real, other=0.0).to(tl.float32)[None, :]
    if group < groups_of_q:
        _rotate_heads(
            q_ptr + row * stride_qr, q_out_ptr + row * (NUM_HEADS * 2 * HALF), stride_qh,
            group * BLOCK_H, cos_1, cos_2, sin_1, sin_2, NUM_HEADS, HALF, BLOCK_H, BLOCK,
        )  # fmt: skip
    else:
        _rotate_heads(
            k_ptr + row * stride_kr, k_out_ptr + row * (NUM_KV_HEADS * 2 * HALF), stride_kh,
            (group - groups_of_q) * BLOCK_H, cos_1, cos_2, sin_1, sin_2,
            NUM_KV_HEADS, HALF, BLOCK_H, BLOCK,
        )  # fmt: skip


def rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q: [T, Hq, D], k: [T, Hkv, D], cos, sin: [T, D], an even D -> x cos + (-x2, x1) sin of both.

    The last dimensions are dense, and the results are as a whole. Rounded once, at the end.
    """
    count, num_heads, size = q.shape
    num_kv_heads = k.shape[1]
    assert k.shape == (count, num_kv_heads, size) and cos.shape == sin.shape == (count, size)
    assert size % 2 == 0 and all(x.stride(-1) == 1 for x in (q, k, cos, sin))
    out = q.new_empty(q.shape), k.new_empty(k.shape)
    block = padded(size // 2)
    block_h = max(1, min(_NUMBERS // (2 * block), triton.next_power_of_2(num_heads)))
    groups = triton.cdiv(num_heads, block_h) + triton.cdiv(num_kv_heads, block_h)
    _rotate_kernel[(count, groups)](
        q, k, cos, sin, *out, *q.stride()[:2], *k.stride()[:2], cos.stride(0), sin.stride(0),
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, HALF=size // 2,
        BLOCK_H=block_h, BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out
