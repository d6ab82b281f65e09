"""Projections of the same input as one matrix product: QKV, gate with up, and a mixer's.

Hugging Face's modelling code asks for them one by one. The first one asked computes all and puts
the others by; they are picked up when asked for. Compiled, nothing of that remains but the product.
"""

from __future__ import annotations

import inspect
from itertools import pairwise

import torch
from torch import nn
from transformers import PreTrainedModel

from sharegen.engine.model.fp8.products import E4M3, FP8Linear, multiply

_TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_b", "in_proj_a"),  # what a gate takes, z, is wanted contiguous
    ("in_proj_qkvz", "in_proj_ba"),
)
_KINDS = (nn.Linear, FP8Linear)
_PARAMETERS = ("weight", "weight_scale", "bias")


class _First(nn.Module):
    """Computes all projections, returns its own and puts the others by.

    weight: [sum of out_features, in_features], with `weight_scale` of a row each where it is FP8;
    sizes: out_features of each.
    """

    weight: nn.Parameter
    weight_scale: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, parameters: dict[str, torch.Tensor], sizes: list[int]) -> None:
        super().__init__()
        for name in _PARAMETERS:
            value = parameters.get(name)
            parameter = None if value is None else nn.Parameter(value, requires_grad=False)
            self.register_parameter(name, parameter)
        self.sizes = sizes
        self.put_by: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.weight_scale is None:
            joint = nn.functional.linear(x, self.weight, self.bias)
        else:
            joint = multiply(x, self.weight, self.weight_scale, self.bias)
        own, *others = joint.split(self.sizes, dim=-1)
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
        for names in (_as_asked(module, names) for names in _TOGETHER):
            layers = [getattr(module, name, None) for name in names]
            if not any(all(type(layer) is kind for layer in layers) for kind in _KINDS):
                continue
            linear: list[nn.Linear] = layers  # type: ignore[assignment]
            alike = {(one.in_features, one.bias is None, one.weight.dtype) for one in linear}
            plain = all(type(one.weight.data) is torch.Tensor for one in linear)  # not quantised
            if len(alike) == 1 and plain:
                replaced += _fuse(module, names, linear)
    return replaced


def _as_asked(module: nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in the order in which the module's forward comes to them, where it does itself."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    asked: tuple[str, ...] = code.co_names if code is not None else ()
    return tuple(sorted(names, key=asked.index)) if set(names) <= set(asked) else names


def unfuse(replaced: list[tuple[nn.Module, str, nn.Module]]) -> None:
    """Put the replaced layers back."""
    for module, name, layer in replaced:
        setattr(module, name, layer)


def _fuse(
    module: nn.Module, names: tuple[str, ...], linear: list[nn.Linear]
) -> list[tuple[nn.Module, str, nn.Module]]:
    sizes = [one.out_features for one in linear]
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    joint: dict[str, torch.Tensor] = {}
    for name in _PARAMETERS:
        parts = [getattr(one, name) for one in linear if getattr(one, name, None) is not None]
        if parts:
            joint[name] = _joined([part.data for part in parts])
            for part, (start, end) in zip(parts, pairwise(ends), strict=True):
                part.data = joint[name][start:end]
    first = _First(joint, sizes)
    setattr(module, names[0], first)
    for name in names[1:]:
        setattr(module, name, _Next(first))
    return [(module, name, one) for name, one in zip(names, linear, strict=True)]


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    if parts[0].dtype is E4M3:
        return torch.cat([part.view(torch.uint8) for part in parts]).view(E4M3)
    return torch.cat(parts)
