"""Arrays from the host to the device, in one copy however many they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_ALIGNMENT = 16  # bytes: where any dtype may begin

Array = npt.NDArray[Any]
Tensors = tuple[torch.Tensor, ...]


def send(device: torch.device, *arrays: Array) -> Tensors:
    """Send arrays to the device as tensors, which are on their way while the host goes on.

    A GPU gets them packed into one pinned buffer, of which the tensors are views. The buffer comes
    from torch's own pool of pinned memory, which gives none out again before its copy is done: no
    copy that is still in flight is ever overwritten.
    """
    if device.type != "cuda":
        return tuple(torch.from_numpy(array) for array in arrays)
    buffer, starts = pack(arrays, pinned=True)
    return unpack(buffer.to(device, non_blocking=True), starts, arrays)


def pack(arrays: Sequence[Array], pinned: bool = False) -> tuple[torch.Tensor, list[int]]:
    """Pack the arrays' bytes one after the other, and say where each begins."""
    starts = [0]
    for array in arrays:
        starts.append(starts[-1] + -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT)
    buffer = torch.empty(starts.pop(), dtype=torch.uint8, pin_memory=pinned)
    place = buffer.numpy()
    for start, array in zip(starts, arrays, strict=True):
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        place[start : start + len(data)] = data
    return buffer, starts


def unpack(buffer: torch.Tensor, starts: Sequence[int], arrays: Sequence[Array]) -> Tensors:
    """Return views of the packed bytes with the arrays' dtypes and shapes."""
    views = []
    for start, array in zip(starts, arrays, strict=True):
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        data = buffer[start : start + array.nbytes]
        views.append(data.view(dtype).view(array.shape))
    return tuple(views)
