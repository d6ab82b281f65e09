"""Repetition, frequency and presence penalties in one pass over the logits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096  # logits a program
_AT_ONCE = 1 << 22  # outputs that are counted together, which takes some 20 bytes each


@triton.jit
def _penalise_kernel(
    logits_ptr, seen_ptr, counts_ptr, repetition_ptr, frequency_ptr, presence_ptr, out_ptr,
    stride_l, stride_s, stride_r, stride_f, stride_p, vocab_size,
    HAS_SEEN: tl.constexpr, HAS_COUNTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i_token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = i_token < vocab_size
    x = tl.load(logits_ptr + row * stride_l + i_token, mask=real, other=0.0).to(tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    if HAS_COUNTS:
        count = tl.load(counts_ptr + row * vocab_size + i_token, mask=real, other=0).to(tl.float32)
    if HAS_SEEN:
        factor = tl.load(repetition_ptr + row * stride_r)
        seen = tl.load(seen_ptr + row * stride_s + i_token, mask=real, other=0) != 0
        damped = tl.where(x < 0, x * factor, x / factor)
        x = tl.where(seen | (count > 0), damped, x)
    x -= tl.load(frequency_ptr + row * stride_f) * count
    x -= tl.load(presence_ptr + row * stride_p) * tl.where(count > 0, 1.0, 0.0)
    tl.store(out_ptr + row * vocab_size + i_token, x, mask=real)


def penalise(
    logits: torch.Tensor, in_prompt: torch.Tensor | None, history: torch.Tensor | None,
    repetition: torch.Tensor, frequency: torch.Tensor, presence: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The penalised logits; the same as `sharegen.engine.sample.penalties.penalise`.

    Args:
        logits: [n, V], any float type.
        in_prompt: [n, V] bool, or None where no row has a repetition penalty.
        history: [n, L] integers, the output so far and -1 beyond, or None while there is none.
        repetition, frequency, presence: [n] float32.

    Returns:
        [n, V] float32.
    """
    num_rows, vocab_size = logits.shape
    assert logits.stride(1) == 1 and (in_prompt is None or in_prompt.stride(1) == 1)
    assert all(len(a) == num_rows for a in (repetition, frequency, presence))
    out = torch.empty(num_rows, vocab_size, dtype=torch.float32, device=logits.device)
    if not num_rows:
        return out
    counts = None
    if history is not None:
        counts = torch.zeros(num_rows, vocab_size, dtype=torch.int32, device=logits.device)
        for piece in history.split(max(1, _AT_ONCE // num_rows), dim=1):
            real = (piece >= 0).to(torch.int32)
            counts.scatter_add_(1, piece.clamp(min=0).to(torch.int64), real)
    seen = None if in_prompt is None else in_prompt.view(torch.uint8)
    _penalise_kernel[(num_rows, triton.cdiv(vocab_size, BLOCK))](
        logits, out if seen is None else seen, out if counts is None else counts,
        repetition, frequency, presence, out,
        logits.stride(0), 0 if seen is None else seen.stride(0),
        repetition.stride(0), frequency.stride(0), presence.stride(0), vocab_size,
        HAS_SEEN=seen is not None, HAS_COUNTS=counts is not None, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out
