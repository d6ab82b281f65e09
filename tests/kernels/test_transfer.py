"""Arrays on their way to the device: packed into one buffer, and what they were when they come."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sharegen.kernels.transfer import pack, send, unpack

ARRAYS = [
    np.arange(7, dtype=np.int32).reshape(7, 1),
    np.empty((0, 3), dtype=np.int32),
    np.array([-(2**62), 5]),
    np.linspace(0, 1, 15, dtype=np.float32).reshape(3, 5),
    np.array([True, False, True]),
    np.arange(24, dtype=np.int64).reshape(2, 3, 4)[:, ::2],
]


def test_packed_arrays_come_out_as_they_went_in() -> None:
    for arrays in (ARRAYS, ARRAYS[::-1], ARRAYS[1:2], []):
        buffer, starts = pack(arrays)
        for tensor, array in zip(unpack(buffer, starts, arrays), arrays, strict=True):
            assert tensor.shape == array.shape
            assert np.array_equal(tensor.numpy(), array) and tensor.numpy().dtype == array.dtype


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")])],
)  # fmt: skip
def test_many_sendings_do_not_overwrite_each_other(device: str) -> None:
    """Far more at a time than any pool of two buffers would bear."""
    sent = [send(torch.device(device), *(array + i for array in ARRAYS[:3])) for i in range(200)]
    for i, tensors in enumerate(sent):
        for tensor, array in zip(tensors, ARRAYS, strict=False):
            assert tensor.device.type == device
            assert np.array_equal(tensor.cpu().numpy(), array + i)
