"""Projections of the same input as one matrix product: QKV, and gate with up.

Hugging Face's modelling code asks for them one by one. The first one asked computes all and puts
the others by; they are picked up when asked for. Compiled, nothing of that remains but the product.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from transformers import PreTrainedModel

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _First(nn.Module):
    """Computes all projections, returns its own and puts the others by.

    weight: [sum of out_features, in_features]; sizes: out_features of each.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, sizes: list[int]) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False) if bias is not None else None
        self.sizes = sizes
        self.put_by: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own, *others = nn.functional.linear(x, self.weight, self.bias).split(self.sizes, dim=-1)
        self.put_by.extend(others)
        return own


class _Next(nn.Module):
    """Picks up what its _First put by. Holds it in a list, so that it is not a submodule twice."""

    def __init__(self, first: _First) -> None:
        super().__init__()
        self.put_by = first.put_by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.put_by.pop(0)


def fuse_projections(model: PreTrainedModel) -> list[tuple[nn.Module, str, nn.Module]]:
    """Fuse wherever the plain linear layers of a module allow it.

    Returns what was replaced, for `unfuse`; the replaced layers share the fused weight's memory.
    """
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    for module in list(model.modules()):
        for names in _TOGETHER:
            layers = [getattr(module, name, None) for name in names]
            if not all(type(layer) is nn.Linear for layer in layers):
                continue
            linear: list[nn.Linear] = layers  # type: ignore[assignment]
            alike = {(one.in_features, one.bias is None, one.weight.dtype) for one in linear}
            plain = all(type(one.weight.data) is torch.Tensor for one in linear)  # not quantised
            if len(alike) == 1 and plain:
                replaced += _fuse(module, names, linear)
    return replaced


def unfuse(replaced: list[tuple[nn.Module, str, nn.Module]]) -> None:
    """Put the replaced layers back."""
    for module, name, layer in replaced:
        setattr(module, name, layer)


def _fuse(
    module: nn.Module, names: tuple[str, ...], linear: list[nn.Linear]
) -> list[tuple[nn.Module, str, nn.Module]]:
    sizes = [one.out_features for one in linear]
    weight = torch.cat([one.weight.data for one in linear])
    bias = None if linear[0].bias is None else torch.cat([one.bias.data for one in linear])
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    for one, (start, end) in zip(linear, pairwise(ends), strict=True):
        one.weight.data = weight[start:end]
        if bias is not None:
            one.bias.data = bias[start:end]
    first = _First(weight, bias, sizes)
    setattr(module, names[0], first)
    for name in names[1:]:
        setattr(module, name, _Next(first))
    return [(module, name, one) for name, one in zip(names, linear, strict=True)]
