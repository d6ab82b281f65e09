"""A model of which the device holds one decoder layer at a time.

Its weights lie on the CPU, where safetensors are mapped rather than read: so a model runs that fits
neither the device nor the memory, as slowly as its weights are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@contextmanager
def layer_by_layer(model: PreTrainedModel, device: torch.device) -> Iterator[None]:
    """Let the model, which is on the CPU, be run on the device inside.

    What is outside of the layers is there all the time; a layer comes for its forward.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    inside = {id(part) for layer in layers for part in layer.modules()}
    outside = [module for module in model.modules() if id(module) not in inside]
    homes: dict[nn.Module, _Home] = {}

    def fetch(layer: nn.Module, arguments: Any) -> None:
        if layer not in homes:  # as one is whose last forward failed
            homes[layer] = _move(layer.modules(), device)

    def put_back(layer: nn.Module, arguments: Any, output: Any) -> None:
        _restore(homes.pop(layer))

    handles = [layer.register_forward_pre_hook(fetch) for layer in layers]
    handles += [layer.register_forward_hook(put_back) for layer in layers]
    home = _move(outside, device)
    try:
        yield
    finally:
        for tensors in (home, *homes.values()):
            _restore(tensors)
        for handle in handles:
            handle.remove()


_Home = list[tuple[dict[str, Any], str, torch.Tensor]]
"""Where modules keep a tensor, under which name, and the one that lies on the CPU."""


def _move(modules: Iterable[nn.Module], device: torch.device) -> _Home:
    home: _Home = []
    for module in modules:
        holders: list[dict[str, Any]] = [module._parameters, module._buffers]
        for kept in holders:
            for name, tensor in kept.items():
                if tensor is not None:
                    home.append((kept, name, tensor))
                    moved = tensor.detach().to(device)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    kept[name] = nn.Parameter(moved, False) if is_parameter else moved
    return home


def _restore(home: _Home) -> None:
    for kept, name, tensor in home:
        kept[name] = tensor
