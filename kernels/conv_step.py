"""One token of a short causal convolution for many sequences, on states that stay where they lie.

The convolution of Mamba (2312.00752), Gated DeltaNet (2412.06464) and LFM2: each channel looks at
its last few inputs. A state, the latest columns of a sequence, is read from one slot of a pool and
written to another, or the same, a column older. Rounds where `causal_conv1d_update` of
transformers does, and adds in the order of torch's depthwise convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment"
from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 256  # channels of a program
_NEIGHBOURS = 2  # of a thread, where a channel's columns are a word
_WORDS = {4: torch.uint32, 8: torch.uint64}  # by bytes
_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _step_kernel(
    x_ptr, states_ptr, read_ptr, write_ptr, weight_ptr, bias_ptr, out_ptr,
    stride_xr, stride_xc, stride_slot, channels,
    L: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr,
    BLOCK: tl.constexpr, STATE: tl.constexpr, BITS: tl.constexpr,
):  # fmt: skip
    """STATE: the states' dtype; BITS: of their numbers, where states_ptr is of words, each of which
    has a channel's columns, and 0 where it is of numbers."""
    row, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = channel < channels
    dtype = weight_ptr.dtype.element_ty
    weights = ()
    for column in tl.static_range(K):
        weight = tl.load(weight_ptr + channel * K + column, mask=real, other=0.0)
        weights += (weight.to(tl.float32),)
    x = tl.load(x_ptr + row * stride_xr + channel * stride_xc, mask=real, other=0.0).to(dtype)
    before = states_ptr + tl.load(read_ptr + row) * stride_slot
    after = states_ptr + tl.load(write_ptr + row) * stride_slot
    window = ()
    if BITS:
        word = tl.load(before + channel, mask=real, other=0)
        for column in tl.static_range(L):
            number = (word >> BITS * column).to(tl.uint16).to(STATE, bitcast=True)
            window += (number.to(dtype),)
        last = x.to(STATE).to(tl.uint16, bitcast=True).to(word.dtype)
        tl.store(after + channel, (word >> BITS) | (last << BITS * (L - 1)), mask=real)
        window += (x,)
    else:  # a thread has one channel: what it stores, no other one reads
        for column in tl.static_range(L):
            number = tl.load(before + channel * L + column, mask=real, other=0.0)
            window += (number.to(dtype),)
        window += (x,)
        for column in tl.static_range(L):
            tl.store(after + channel * L + column, window[column + 1], mask=real)
    out = tl.zeros((BLOCK,), tl.float32)
    if HAS_BIAS:
        out += tl.load(bias_ptr + channel, mask=real, other=0.0).to(tl.float32)
    for column in tl.static_range(K):
        out += weights[column] * window[L + 1 - K + column].to(tl.float32)
    if HAS_SILU:
        out = out.to(dtype).to(tl.float32)
        out = out / (1 + tl.exp(-out))
    tl.store(out_ptr + row * channels + channel, out.to(dtype), mask=real)


def conv_step(
    x: torch.Tensor, states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
    weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
) -> torch.Tensor:  # fmt: skip
    """The output [n, C, 1] of one token of each of n sequences; their states go on by it.

    x: [n, C, 1], of any strides; states: [slots, C, L], the last L inputs, L >= K - 1; read, write:
    int64 [n] slots; weight: [C, K]; bias: [C] or None; activation: None, "silu" or "swish". The
    output has x's dtype, and is the transpose of a contiguous [n, 1, C]. A slot that is written may
    be another sequence's to read only if both are thrown away.
    """
    count, channels, steps = x.shape
    length, size = states.shape[-1], weight.shape[-1]
    assert steps == 1 and weight.shape == (channels, size) and 1 <= size <= length + 1
    assert states.shape[1:] == (channels, length) and states[0].is_contiguous()
    assert all(tensor.dtype in _TYPES for tensor in (x, states, weight))
    assert bias is None or (bias.shape == (channels,) and bias.dtype == weight.dtype)
    assert read.shape == write.shape == (count,) and read.dtype == write.dtype == torch.int64
    assert activation in (None, "silu", "swish")
    out = torch.empty((count, 1, channels), dtype=x.dtype, device=x.device)
    dtype, bits = states.dtype, 0
    word = _WORDS.get(length * dtype.itemsize) if dtype.itemsize == 2 else None
    is_aligned = states.stride(0) % length == states.storage_offset() % length == 0
    if word is not None and is_aligned and dtype == weight.dtype:
        states, bits = states.view(word)[..., 0], 8 * dtype.itemsize
    _step_kernel[(count, triton.cdiv(channels, _BLOCK))](
        x, states, read.contiguous(), write.contiguous(), weight.contiguous(),
        weight if bias is None else bias.contiguous(), out,
        *x.stride()[:2], states.stride(0), channels,
        L=length, K=size, HAS_BIAS=bias is not None, HAS_SILU=activation is not None,
        BLOCK=_BLOCK, STATE=_TYPES[dtype], BITS=bits,
        num_warps=_BLOCK // (32 * (_NEIGHBOURS if bits else 1)),
    )  # fmt: skip
    return out.transpose(1, 2)
