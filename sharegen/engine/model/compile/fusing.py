"""Projections of the same input as one matrix product: QKV, gate with up, and a mixer's.

Hugging Face's modelling code asks for them one by one. The first one asked computes all and puts
the others by; they are picked up when asked for. Compiled, nothing of that remains but the product.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise

import torch
from torch import nn
from transformers import PreTrainedModel

from sharegen.engine.model.fp8.blocks import BLOCK, FP8BlockLinear, multiply_blocks
from sharegen.engine.model.fp8.products import E4M3, FP8Linear, multiply

_TOGETHER = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_b", "in_proj_a"),  # what a gate takes, z, is wanted contiguous
    ("in_proj_qkvz", "in_proj_ba"),
)
_KINDS = (nn.Linear, FP8Linear, FP8BlockLinear)
_PARAMETERS = ("weight", "weight_scale", "bias")

MayMove = Callable[[nn.Parameter], bool]
"""Whether a parameter may be given other memory to lie in."""


class _First(nn.Module):
    """Computes all projections, returns its own and puts the others by.

    weight: [sum of out_features, in_features], with `weight_scale` of a row each where it is FP8,
    or of a block; sizes: out_features of each; layers: which it computes. Their own parameters are
    slices of the joint ones, so that they take no memory twice and may be trained, but where
    `may_move` says no: then these are copies.
    """

    weight: nn.Parameter
    weight_scale: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, layers: list[nn.Linear], may_move: MayMove) -> None:
        super().__init__()
        self.layers = layers  # a list, so that they are not its submodules
        self.sizes = [one.out_features for one in layers]
        self.by_blocks = isinstance(layers[0], FP8BlockLinear)
        self.may_move = may_move
        self.put_by: list[torch.Tensor] = []
        for name in _PARAMETERS:
            parts = [own for one in layers if (own := getattr(one, name, None)) is not None]
            joint = _joined([part.data for part in parts]) if parts else None
            parameter = None if joint is None else nn.Parameter(joint, requires_grad=False)
            self.register_parameter(name, parameter)
        for own, part in self.parts():
            if may_move(own):
                own.data = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.by_blocks:
            assert self.weight_scale is not None
            joint = multiply_blocks(x, self.weight, self.weight_scale, self.bias)
        elif self.weight_scale is None:
            joint = nn.functional.linear(x, self.weight, self.bias)
        else:
            joint = multiply(x, self.weight, self.weight_scale, self.bias)
        own, *others = joint.split(self.sizes, dim=-1)
        self.put_by.extend(others)
        return own

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what the layers' parameters are now, where these are no slices of the joint."""
        for own, part in self.parts():
            if own.data_ptr() != part.data_ptr():
                part.copy_(own.data)
                if self.may_move(own):
                    own.data = part

    def part_ways(self) -> None:
        """Give the layers' parameters memory of their own again, if somebody else goes on with
        them.
        """
        for own, part in self.parts():
            if own.data_ptr() == part.data_ptr():
                own.data = part.clone()

    def parts(self) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Yield the layers' parameters, each with its slice of the joint one."""
        ends = [0, *accumulate(self.sizes)]
        for name in _PARAMETERS:
            joint = getattr(self, name)
            each = BLOCK if self.by_blocks and name == "weight_scale" else 1
            for layer, (start, end) in zip(self.layers, pairwise(ends), strict=True):
                if joint is not None:
                    yield getattr(layer, name), joint.data[start // each : end // each]


class _Next(nn.Module):
    """Picks up what its _First put by. Holds it in a list, so that it is not a submodule twice."""

    def __init__(self, first: _First) -> None:
        super().__init__()
        self.put_by = first.put_by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.put_by.pop(0)


def fuse_projections(
    model: PreTrainedModel, is_lent: bool = False
) -> list[tuple[nn.Module, str, nn.Module]]:
    """Fuse wherever the plain linear layers of a module allow it.

    is_lent: whether somebody else trains the model meanwhile.

    Returns what was replaced, for `unfuse`; the replaced layers share the fused weight's memory.
    """
    replaced: list[tuple[nn.Module, str, nn.Module]] = []
    may_move = alone_in_memory(model) if is_lent else always
    for module in list(model.modules()):
        for names in (_as_asked(module, names) for names in _TOGETHER):
            layers = [getattr(module, name, None) for name in names]
            if not any(all(type(layer) is kind for layer in layers) for kind in _KINDS):
                continue
            linear: list[nn.Linear] = layers  # type: ignore[assignment]
            alike = {(one.in_features, one.bias is None, one.weight.dtype) for one in linear}
            are_whole = type(linear[0]) is not FP8BlockLinear or all(
                one.out_features % BLOCK == 0 for one in linear
            )
            plain = all(type(one.weight.data) is torch.Tensor for one in linear)  # not quantised
            if len(alike) == 1 and plain and are_whole:
                first = _First(linear, may_move)
                setattr(module, names[0], first)
                for name in names[1:]:
                    setattr(module, name, _Next(first))
                replaced += [(module, name, one) for name, one in zip(names, linear, strict=True)]
    return replaced


def _as_asked(module: nn.Module, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in the order in which the module's forward comes to them, where it does itself."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    asked: tuple[str, ...] = code.co_names if code is not None else ()
    return tuple(sorted(names, key=asked.index)) if set(names) <= set(asked) else names


def refresh(replaced: Iterable[tuple[nn.Module, str, nn.Module]]) -> None:
    """Take over what has become of the replaced layers' parameters."""
    for first in _firsts(replaced):
        first.refresh()


def unfuse(replaced: list[tuple[nn.Module, str, nn.Module]], is_lent: bool = False) -> None:
    """Put the replaced layers back."""
    if is_lent:
        for first in _firsts(replaced):
            first.part_ways()
    for module, name, layer in replaced:
        setattr(module, name, layer)


def fused_layers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers that are fused, which are no parts of the model meanwhile."""
    for part in model.modules():
        if isinstance(part, _First):
            yield from part.layers


def _firsts(replaced: Iterable[tuple[nn.Module, str, nn.Module]]) -> Iterator[_First]:
    for module, name, _ in replaced:
        found = module._modules[name]
        if isinstance(found, _First):
            yield found


def always(parameter: nn.Parameter) -> bool:
    """Whether a parameter of a model that is sharegen's own may lie elsewhere: it may."""
    return True


def alone_in_memory(model: nn.Module) -> MayMove:
    """Return what tells whether a parameter may lie elsewhere though somebody else trains it.

    It may not where others reach its memory without asking the parameter: another one that is tied
    to it, or a flat buffer of a trainer that it is a part of.
    """
    places = Counter(
        weight.data_ptr()
        for module in model.modules()
        for weight in module._parameters.values()
        if weight is not None
    )

    def may_move(parameter: nn.Parameter) -> bool:
        is_whole = parameter.untyped_storage().nbytes() == parameter.nbytes
        return is_whole and places[parameter.data_ptr()] <= 1

    return may_move


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    if parts[0].dtype is E4M3:
        return torch.cat([part.view(torch.uint8) for part in parts]).view(E4M3)
    return torch.cat(parts)
