"""A model's weights on the host while its engine sleeps, and back where it computes.

Whole storages move, so that weights which share one (tied ones, slices of a fused one) go on doing
so and none is copied twice.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from sharegen.engine.model.compile.fusing import fused_layers
from sharegen.errors import UsageError


def move_weights(model: nn.Module, device: torch.device) -> None:
    """Move all weights and buffers of a model to a device.

    Raises UsageError, before anything has moved, where some are packed in a way of their own.
    """
    parts = [*model.modules(), *fused_layers(model)]
    tensors = [
        tensor
        for part in parts
        for tensor in (*part._parameters.values(), *part._buffers.values())
        if tensor is not None
    ]
    packed = next((one for one in tensors if type(one.data) is not torch.Tensor), None)
    if packed is not None:
        raise UsageError(
            f"the model's weights are packed ({type(packed.data).__name__}) and stay where they "
            "are: use close, and make a new LLM"
        )
    move(tensors, device)


@torch.no_grad()
def move(tensors: Iterable[torch.Tensor], device: torch.device) -> None:
    """Move tensors to memory of a device, in place; those that share memory share it there."""
    moved: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in moved:
            there = torch.UntypedStorage(storage.nbytes(), device=device)
            moved[storage.data_ptr()] = there.copy_(storage)
            moved[there.data_ptr()] = there  # of a tensor that is named twice
        there = moved[storage.data_ptr()]
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=device).set_(there, *place)
