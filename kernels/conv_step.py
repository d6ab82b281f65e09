"""A short causal convolution for many sequences, on states that stay where they lie.

The convolution of Mamba (2312.00752), Gated DeltaNet (2412.06464) and LFM2: each channel looks at
its last few inputs. A state is a ring of the last columns of a sequence: token p's is column p mod
their number, and a step writes its own over the oldest. Rounds where `causal_conv1d_update` and
`causal_conv1d_fn` of transformers do, and adds in the order of torch's depthwise convolution.
"""

# mypy: disable-error-code="no-untyped-def, assignment, var-annotated"
from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK, _ROWS = 512, 4  # channels and sequences of a program
_TOKENS = 16  # of a sequence of a prompt, of a program
_NEIGHBOURS = 4  # channels of a thread
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def _step_kernel(
    x_ptr, states_ptr, read_ptr, write_ptr, position_ptr, weight_ptr, bias_ptr, out_ptr,
    stride_xr, stride_xc, stride_slot, rows, channels,
    L: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = channel < channels
    dtype = weight_ptr.dtype.element_ty
    weights = ()
    for column in tl.static_range(K):
        weight = tl.load(weight_ptr + channel * K + column, mask=real, other=0.0)
        weights += (weight.to(tl.float32),)
    bias = tl.zeros((BLOCK,), tl.float32)
    if HAS_BIAS:
        bias += tl.load(bias_ptr + channel, mask=real, other=0.0).to(tl.float32)
    first = tl.program_id(0).to(tl.int64) * ROWS
    windows, positions, reads, writes = (), (), (), ()
    for turn in tl.static_range(ROWS):  # all is asked for before anything is written
        row = first + turn
        position = tl.load(position_ptr + row, mask=row < rows, other=0)
        read = tl.load(read_ptr + row, mask=row < rows, other=0)
        write = tl.load(write_ptr + row, mask=row < rows, other=0)
        there = real & (row < rows)
        window = ()
        for back in tl.static_range(K - 1, 0, -1):
            column = states_ptr + read * stride_slot + (position + L - back) % L * channels
            window += (tl.load(column + channel, mask=there, other=0.0),)
        window += (tl.load(x_ptr + row * stride_xr + channel * stride_xc, mask=there, other=0.0),)
        windows += (window,)
        positions += (position,)
        reads += (read,)
        writes += (write,)
    for turn in tl.static_range(ROWS):
        row = first + turn
        there = real & (row < rows)
        position, read, write = positions[turn], reads[turn], writes[turn]
        out = bias
        for column in tl.static_range(K):
            out += weights[column] * windows[turn][column].to(dtype).to(tl.float32)
        if read != write:  # all but the oldest are kept
            for back in tl.static_range(1, L):
                at = (position + L - back) % L * channels + channel
                earlier = tl.load(states_ptr + read * stride_slot + at, mask=there, other=0.0)
                tl.store(states_ptr + write * stride_slot + at, earlier, mask=there)
        latest = windows[turn][K - 1].to(dtype).to(states_ptr.dtype.element_ty)
        at = position % L * channels + channel
        tl.store(states_ptr + write * stride_slot + at, latest, mask=there)
        if HAS_SILU:
            out = out.to(dtype).to(tl.float32)
            out = out / (1 + tl.exp(-out))
        tl.store(out_ptr + row * channels + channel, out.to(dtype), mask=there)


@triton.jit
def _input(
    x_ptr, states_ptr, token, position, channel, there, stride_xt, stride_xc, channels,
    L: tl.constexpr,
):  # fmt: skip
    """The input of a sequence's token; those before its first (-1 and on) are in its state."""
    x = tl.load(
        x_ptr + token * stride_xt + channel * stride_xc, mask=there & (token >= 0), other=0.0
    )
    column = (position + token + L) % L * channels
    earlier = tl.load(states_ptr + column + channel, mask=there & (token < 0), other=0.0)
    return tl.where(token >= 0, x, earlier.to(x.dtype))


@triton.jit
def _chunk_kernel(
    x_ptr, states_ptr, read_ptr, write_ptr, position_ptr, weight_ptr, bias_ptr, out_ptr,
    stride_xr, stride_xc, stride_xt, stride_slot, tokens, channels,
    L: tl.constexpr, K: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_SILU: tl.constexpr,
    BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    real = channel < channels
    dtype = weight_ptr.dtype.element_ty
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TOKENS
    position = tl.load(position_ptr + row)
    before = states_ptr + tl.load(read_ptr + row) * stride_slot
    after = states_ptr + tl.load(write_ptr + row) * stride_slot
    x_ptr += row * stride_xr
    out_ptr += row * tokens * channels
    weights = ()
    for column in tl.static_range(K):
        weight = tl.load(weight_ptr + channel * K + column, mask=real, other=0.0)
        weights += (weight.to(tl.float32),)
    bias = tl.zeros((BLOCK,), tl.float32)
    if HAS_BIAS:
        bias += tl.load(bias_ptr + channel, mask=real, other=0.0).to(tl.float32)
    inputs = ()
    for turn in tl.static_range(TOKENS + K - 1):
        token = first + turn - (K - 1)
        there = real & (token < tokens)
        x = _input(
            x_ptr, before, token, position, channel, there, stride_xt, stride_xc, channels, L
        )
        inputs += (x.to(dtype).to(tl.float32),)
    for turn in tl.static_range(TOKENS):
        out = bias
        for column in tl.static_range(K):
            out += weights[column] * inputs[turn + column]
        if HAS_SILU:
            out = out.to(dtype).to(tl.float32)
            out = out / (1 + tl.exp(-out))
        token = first + turn
        there = real & (token < tokens)
        tl.store(out_ptr + token.to(tl.int64) * channels + channel, out.to(dtype), mask=there)
    if first + TOKENS >= tokens:
        for back in tl.static_range(1, L + 1):
            token = tokens - back
            x = _input(
                x_ptr, before, token, position, channel, real, stride_xt, stride_xc, channels, L
            )
            x = x.to(dtype).to(states_ptr.dtype.element_ty)
            tl.store(after + (position + token + L) % L * channels + channel, x, mask=real)


def conv_step(
    x: torch.Tensor, states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
    position: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
) -> torch.Tensor:  # fmt: skip
    """Convolve one token of each of n sequences with those before it; their states go on by it.

    A slot that is written may be another sequence's to read only if both are thrown away.

    Args:
        x: [n, C, 1], of any strides.
        states: [slots, L, C], the last L inputs as a ring, L >= K - 1.
        read, write: [n] int64, slots.
        position: [n] int64, how many tokens came before.
        weight: [C, K].
        bias: [C], or None.
        activation: None, "silu" or "swish".

    Returns:
        [n, C, 1] in x's dtype, the transpose of a contiguous [n, 1, C].
    """
    count, channels, steps = x.shape
    assert steps == 1
    parts = _checked(x, states, read, write, position, weight, bias, activation)
    out = torch.empty((count, 1, channels), dtype=x.dtype, device=x.device)
    _step_kernel[(triton.cdiv(count, _ROWS), triton.cdiv(channels, _BLOCK))](
        *parts, out, *x.stride()[:2], states.stride(0), count, channels,
        L=states.shape[1], K=weight.shape[-1], HAS_BIAS=bias is not None,
        HAS_SILU=activation is not None, BLOCK=_BLOCK, ROWS=_ROWS,
        num_warps=_BLOCK // (32 * _NEIGHBOURS),
    )  # fmt: skip
    return out.transpose(1, 2)


def conv_chunk(
    x: torch.Tensor, states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
    position: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
) -> torch.Tensor:  # fmt: skip
    """Convolve T tokens of each of n sequences with those before; their states go on by them.

    No slot that is written is read.

    Args:
        x: [n, C, T], of any strides.
        states, read, write, position, weight, bias, activation: as `conv_step` takes them.

    Returns:
        [n, C, T] in x's dtype, the transpose of a contiguous [n, T, C].
    """
    count, channels, tokens = x.shape
    parts = _checked(x, states, read, write, position, weight, bias, activation)
    out = torch.empty((count, tokens, channels), dtype=x.dtype, device=x.device)
    _chunk_kernel[(count, triton.cdiv(tokens, _TOKENS), triton.cdiv(channels, _BLOCK))](
        *parts, out, *x.stride(), states.stride(0), tokens, channels,
        L=states.shape[1], K=weight.shape[-1], HAS_BIAS=bias is not None,
        HAS_SILU=activation is not None, BLOCK=_BLOCK, TOKENS=_TOKENS,
        num_warps=_BLOCK // (32 * _NEIGHBOURS),
    )  # fmt: skip
    return out.transpose(1, 2)


def _checked(
    x: torch.Tensor, states: torch.Tensor, read: torch.Tensor, write: torch.Tensor,
    position: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Check the arguments, and return what both kernels are given first."""
    count, channels, _ = x.shape
    length, size = states.shape[1], weight.shape[-1]
    assert weight.shape == (channels, size) and 1 <= size <= length + 1
    assert states.shape[2] == channels and states[0].is_contiguous()
    assert all(tensor.dtype in _TYPES for tensor in (x, states, weight))
    assert bias is None or (bias.shape == (channels,) and bias.dtype == weight.dtype)
    assert read.shape == write.shape == position.shape == (count,)
    assert read.dtype == write.dtype == position.dtype == torch.int64
    assert activation in (None, "silu", "swish")
    return (
        x, states, read.contiguous(), write.contiguous(), position.contiguous(),
        weight.contiguous(), weight if bias is None else bias.contiguous(),
    )  # fmt: skip
