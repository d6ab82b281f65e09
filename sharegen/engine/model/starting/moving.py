"""A model's weights on their way to a GPU.

Weights that lie in a file are read when they are used, by one thread and in pieces that the card
must wait for. Here all cores read them, into memory that the card copies from by itself meanwhile.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import TypeVar

import torch
from torch import nn

_Module = TypeVar("_Module", bound=nn.Module)

_LEAST = 1 << 20  # bytes of a tensor that it is worth for
_PIECE = 64 << 20  # bytes read at a time; one piece is read while the one before is copied


def move_to(model: _Module, device: torch.device) -> _Module:
    """What `model.to(device)` does."""
    if device.type == "cuda":
        tensors = [*model.parameters(), *model.buffers()]
        for tensor in {id(tensor): tensor for tensor in tensors}.values():
            if tensor.data.is_contiguous():
                tensor.data = on_device(tensor.data, device)
        pieces_to(device).wait()
    return model.to(device)


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """What `tensor.to(device)` is, which may still be on its way."""
    if tensor.device.type == "cpu" and goes_in_pieces(tensor, device):
        return pieces_to(device).copy(tensor)
    return tensor.to(device)


def goes_in_pieces(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether it is worth it for a tensor as large as this one."""
    return device.type == "cuda" and tensor.nbytes >= _LEAST


@cache
def pieces_to(device: torch.device) -> Pieces:
    """Those of the process, for torch does not give page-locked memory back."""
    return Pieces(device)


class Pieces:
    """Two buffers in page-locked memory that tensors go through. size: bytes of each, of which a
    number must not have more.
    """

    def __init__(self, device: torch.device, size: int = _PIECE) -> None:
        on_gpu = device.type == "cuda"
        self._device = device
        with torch.inference_mode(False):  # so that they can be used in and out of it
            made = (torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(2))
            self._buffers = list(made)
        self._copied = [torch.cuda.Event() for _ in self._buffers] if on_gpu else []
        self._count = 0
        self._lock = threading.Lock()

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """The same on the device, where it may still be on its way."""
        target = torch.empty(source.shape, dtype=source.dtype, device=self._device)
        self.fill(target, source)
        return target

    def fill(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """What `target.copy_(source)` does, at some time before what uses the target next.

        Both may have any strides: of a part of a tensor nothing else is read.
        """
        size = len(self._buffers[0])
        if source.nbytes > size:
            dim = next(dim for dim, length in enumerate(source.shape) if length > 1)
            step = max(1, source.shape[dim] * size // source.nbytes)
            parts = zip(target.split(step, dim), source.split(step, dim), strict=True)
            for place, part in parts:
                self.fill(place, part)
            return
        with self._lock:
            which = self._count % 2
            self._count += 1
            buffer = self._buffers[which][: source.nbytes].view(source.dtype).view(source.shape)
            if self._copied:
                self._copied[which].synchronize()
            buffer.copy_(source)
            there = buffer.to(self._device, non_blocking=True)
            target.copy_(there)
            if self._copied:
                self._copied[which].record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Until all of it is there."""
        for event in self._copied:
            event.synchronize()
