"""A model's weights on their way to a GPU.

Weights that lie in a file are read when they are used, by one thread and in pieces that the card
must wait for. Here all cores read them, into memory that the card copies from by itself meanwhile.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

_Module = TypeVar("_Module", bound=nn.Module)

_LEAST = 1 << 20  # bytes of a tensor that it is worth for
_PIECE = 64 << 20  # bytes read at a time; one piece is read while the one before is copied


def move_to(model: _Module, device: torch.device) -> _Module:
    """What `model.to(device)` does."""
    if device.type == "cuda":
        pieces = Pieces(device)
        tensors = [*model.parameters(), *model.buffers()]
        for tensor in {id(tensor): tensor for tensor in tensors}.values():
            data = tensor.data
            if data.device.type == "cpu" and data.nbytes >= _LEAST and data.is_contiguous():
                tensor.data = pieces.copy(data)
        pieces.wait()
    return model.to(device)


class Pieces:
    """Two buffers in page-locked memory that tensors go through. size: bytes of each."""

    def __init__(self, device: torch.device, size: int = _PIECE) -> None:
        on_gpu = device.type == "cuda"
        self._device = device
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2)]
        self._copied = [torch.cuda.Event() for _ in self._buffers] if on_gpu else []
        self._count = 0

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """The same on the device, where it may still be on its way. source: contiguous."""
        target = torch.empty_like(source, device=self._device)
        size = len(self._buffers[0])
        parts = zip(_bytes(source).split(size), _bytes(target).split(size), strict=True)
        for part, place in parts:
            which = self._count % 2
            self._count += 1
            buffer = self._buffers[which][: len(part)]
            if self._copied:
                self._copied[which].synchronize()
            buffer.copy_(part)
            place.copy_(buffer, non_blocking=True)
            if self._copied:
                self._copied[which].record()
        return target

    def wait(self) -> None:
        """Until all of it is there."""
        for event in self._copied:
            event.synchronize()


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)
