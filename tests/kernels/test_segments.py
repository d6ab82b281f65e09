"""The largest of every segment against torch."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.sample import sampler as reference
from sharegen.kernels import segments as kernels

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("size", [16, 128])
@pytest.mark.parametrize("vocab_size", [5, 128, 5003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_against_the_reference(size: int, vocab_size: int, dtype: torch.dtype) -> None:
    values = torch.randn(9, 2 * vocab_size, generator=torch.manual_seed(vocab_size)).to(dtype)
    values[1] = -torch.inf
    values[2, :vocab_size] -= 1000.0
    values = values[:, :vocab_size]  # rows that lie apart
    got = kernels.segment_maxima(values.to(DEVICE), size)
    expected = reference.segment_maxima(values, size) if vocab_size >= size else values[:, :0]
    assert got.dtype == dtype and torch.equal(got.cpu(), expected)


def test_no_rows() -> None:
    assert kernels.segment_maxima(torch.empty(0, 300, device=DEVICE), 128).shape == (0, 2)
