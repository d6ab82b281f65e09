"""The largest value of every segment of each row: where a row's largest values can be."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 32  # segments a program


@triton.jit
def _segments_kernel(
    values_ptr, out_ptr, stride_v, segments, SEGMENT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    i = first * SEGMENT + tl.arange(0, BLOCK * SEGMENT)
    p_values = values_ptr + row * stride_v + i
    values = tl.load(p_values, mask=i < segments * SEGMENT, other=float("-inf"))
    i_segment = first + tl.arange(0, BLOCK)
    largest = tl.max(tl.reshape(values, [BLOCK, SEGMENT]), 1)
    tl.store(out_ptr + row * segments + i_segment, largest, mask=i_segment < segments)


def segment_maxima(values: torch.Tensor, size: int) -> torch.Tensor:
    """Return the largest of every `size` values, [n, V // size]; a last, shorter segment is left
    out.

    values: [n, V], any float type; size: a power of two. The same as
    `sharegen.engine.sample.sampler.segment_maxima`.
    """
    rows, segments = values.shape[0], values.shape[1] // size
    assert values.stride(1) == 1
    out = values.new_empty(rows, segments)
    if out.numel():
        _segments_kernel[(rows, triton.cdiv(segments, _BLOCK))](
            values, out, values.stride(0), segments, SEGMENT=size, BLOCK=_BLOCK, num_warps=4
        )
    return out
