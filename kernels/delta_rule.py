"""One token of the gated delta rule for many sequences, on states that stay where they lie.

Gated DeltaNet (2412.06464), equation 10, and with a decay for each key number Kimi Linear's KDA
(2510.26692): S = decay * S + beta * k (v - (decay * S)^T k)^T, and out = S^T q. A state is read
from one slot of a pool and written to another, or the same, and moved no more than that.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK_V = 32  # columns of a state that a program holds, 128 numbers each in the usual models
_EPSILON = tl.constexpr(1e-6)  # of the norm of queries and keys, as in transformers


@triton.jit
def _unit(x):
    return x * tl.rsqrt(tl.sum(x * x, 0) + _EPSILON)


@triton.jit
def _step_kernel(
    q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, states_ptr, read_ptr, write_ptr, out_ptr,
    stride_qr, stride_qh, stride_kr, stride_kh, stride_vr, stride_vh, stride_slot, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    DECAYS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    i, j = tl.arange(0, BLOCK_K), tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    of_row, of_head = row * HEADS + head, head // GROUP
    q = tl.load(q_ptr + row * stride_qr + of_head * stride_qh + i, mask=i < K, other=0.0)
    k = tl.load(k_ptr + row * stride_kr + of_head * stride_kh + i, mask=i < K, other=0.0)
    v = tl.load(v_ptr + row * stride_vr + head * stride_vh + j, mask=j < V, other=0.0)
    q, k, v = _unit(q.to(tl.float32)) * scale, _unit(k.to(tl.float32)), v.to(tl.float32)
    beta = tl.load(beta_ptr + of_row).to(tl.float32)
    place = (head * K + i[:, None]) * V + j[None, :]
    real = (i[:, None] < K) & (j[None, :] < V)
    slot = tl.load(read_ptr + row).to(tl.int64)
    state = tl.load(states_ptr + slot * stride_slot + place, mask=real, other=0.0)
    if DECAYS == 1:
        state *= tl.exp(tl.load(decay_ptr + of_row).to(tl.float32))
    else:
        decay = tl.load(decay_ptr + of_row * K + i, mask=i < K, other=0.0)
        state *= tl.exp(decay.to(tl.float32))[:, None]
    change = (v - tl.sum(state * k[:, None], 0)) * beta
    state += k[:, None] * change[None, :]
    slot = tl.load(write_ptr + row).to(tl.int64)
    tl.store(states_ptr + slot * stride_slot + place, state, mask=real)
    tl.store(out_ptr + of_row * V + j, tl.sum(state * q[:, None], 0), mask=j < V)


def delta_rule_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor,
    states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The output [n, heads, V] of one token of each of n sequences; their states go on by it.

    q, k: [n, key heads, K], each of which serves as many neighbouring heads; v: [n, heads, V];
    decay: log, [n, heads] or [n, heads, K]; beta: [n, heads]. states: float32 [slots, heads, K, V];
    read, write: [n] slots. Queries and keys are made unit vectors, and queries divided by sqrt(K).
    A slot that is written may be another sequence's to read only if both are thrown away.
    """
    count, heads, v_size = v.shape
    key_heads, size = k.shape[1:]
    assert q.shape == k.shape and k.shape[0] == count and heads % key_heads == 0
    assert states.shape[1:] == (heads, size, v_size) and states.dtype == torch.float32
    assert states[0].is_contiguous() and beta.shape == (count, heads)
    assert decay.shape in ((count, heads), (count, heads, size))
    assert read.shape == write.shape == (count,)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    out = torch.empty((count, heads, v_size), dtype=v.dtype, device=v.device)
    _step_kernel[(count * heads, triton.cdiv(v_size, _BLOCK_V))](
        q, k, v, decay.contiguous(), beta.contiguous(), states, read, write, out,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], states.stride(0), size**-0.5,
        HEADS=heads, GROUP=heads // key_heads, K=size, V=v_size,
        DECAYS=1 if decay.dim() == 2 else size, BLOCK_K=triton.next_power_of_2(size),
        BLOCK_V=_BLOCK_V, num_warps=4,
    )  # fmt: skip
    return out
