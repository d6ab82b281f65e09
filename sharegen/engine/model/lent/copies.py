"""Weights that an engine computes with in the place of a trained module's own.

There are three kinds: a layer with its adapter merged, large weights in FP8, and all weights in
another dtype, as for a module that trains in float32 under autocast. The module's own are never
touched: copies are put in their place while it is lent (`lending.py`), and made again where they
lie when the weights change.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sharegen.engine.model.fp8.quantising import (
    check,
    install,
    naming,
    places,
    quantise,
    warn_of_small_share,
)
from sharegen.errors import ModelError

_PEFT = ("tuners.tuners_utils", "utils.other")
_CANNOT_MERGE = (RuntimeError, TypeError, ValueError)  # the first also what is not implemented


@dataclass(frozen=True)
class _Copy:
    """A weight and what the engine has in its place, which may become a slice of a larger one."""

    owner: nn.Module
    name: str
    copy: nn.Parameter

    def refresh(self) -> None:
        self.copy.data.copy_(self.owner._parameters[self.name].data)  # type: ignore[union-attr]


@dataclass(frozen=True)
class _Merged:
    """Layers of adapters around one of the model's, the outermost first, and what has all in it."""

    layers: tuple[Any, ...]
    copy: nn.Module

    def refresh(self) -> None:
        for name, weight in _merged(self.layers).items():
            if weight is not None:
                self.copy._parameters[name].data.copy_(weight.data)  # type: ignore[union-attr]


@dataclass(frozen=True)
class _Quantised:
    """A weight, and what the engine has of it in FP8."""

    path: str
    owner: nn.Module
    name: str
    is_transposed: bool
    numbers: nn.Parameter
    scales: nn.Parameter

    def refresh(self) -> None:
        weight: Any = self.owner._parameters[self.name]
        try:
            rows = quantise(weight.data, self.is_transposed, weight.device)
        except ModelError as error:
            raise ModelError(
                f"the model's {self.path} {error}: its training has diverged"
            ) from None
        self.numbers.data.copy_(rows.values)
        self.scales.data.copy_(rows.scales)


class Copies:
    """The copies that there are of a module's weights."""

    def __init__(self) -> None:
        self._copies: list[_Copy | _Merged | _Quantised] = []

    @torch.no_grad()
    def put(self, model: PreTrainedModel, dtype: torch.dtype | None, quantized: bool) -> None:
        """Put copies in the place of layers with adapters, of large weights that are to be FP8,
        and for a dtype of all other weights.

        Raises ModelError and UsageError as `quantise_in_place` does.
        """
        for parent, name, layers in list(_layers_with_adapters(model)):
            try:
                weights = _merged(layers)
            except torch.OutOfMemoryError:
                raise
            except _CANNOT_MERGE:  # it goes on computing both
                continue
            copy = _with_weights(layers[0].get_base_layer(), weights, dtype)
            parent._modules[name] = copy
            self._copies.append(_Merged(layers, copy))
        if quantized:
            self._quantise(model)
        if dtype is not None:
            self._cast(model, dtype)

    def _quantise(self, model: PreTrainedModel) -> None:
        kind = type(model).__name__
        found = places(model)
        check(found, model, kind, model.device)
        for place in found:
            owner: Any = model.get_submodule(place.module)
            with naming(kind, place.name):
                rows = quantise(getattr(owner, place.parameter), place.is_transposed, model.device)
            install(model, place, rows)
            module: Any = model.get_submodule(place.module)
            numbers = getattr(module, place.parameter)
            scales = getattr(module, f"{place.parameter}_scale")
            self._copies.append(_Quantised(
                place.name, owner, place.parameter, place.is_transposed, numbers, scales
            ))  # fmt: skip
            if module is not owner and module.bias is not None:
                module.bias.data = module.bias.data.clone()  # no memory that somebody else has
                self._copies.append(_Copy(owner, "bias", module.bias))
        warn_of_small_share(model, kind)

    def _cast(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        known = {id(weight) for one in self._copies if isinstance(one, _Merged)
                 for weight in one.copy.parameters()}  # fmt: skip
        known |= {id(weight) for one in self._copies if isinstance(one, _Quantised)
                  for weight in (one.numbers, one.scales)}  # fmt: skip
        made: dict[int, nn.Parameter] = {}  # of weights that are tied there is one
        stay = _stay_in_float32(model, dtype)
        for path, owner in list(model.named_modules()):
            for name, weight in list(owner._parameters.items()):
                if weight is None or id(weight) in known or weight.dtype == dtype:
                    continue
                if not weight.is_floating_point() or stay(f"{path}.{name}"):
                    continue
                if id(weight) not in made:
                    made[id(weight)] = _parameter(weight.detach().to(dtype))
                    self._copies.append(_Copy(owner, name, made[id(weight)]))
                owner._parameters[name] = made[id(weight)]

    @torch.no_grad()
    def refresh(self) -> None:
        """Make them again, of the weights as they are now."""
        for copy in self._copies:
            copy.refresh()


def _layers_with_adapters(
    model: nn.Module,
) -> Iterator[tuple[nn.Module, str, tuple[Any, ...]]]:
    """Yield where peft's layers stand, and them, the outermost first: parent, name and layers.

    Those within a wrapper of peft's, as single tokens that are trained have, are left to it: it
    asks them for its own weight.
    """
    tuners, wrappers = (sys.modules.get(f"peft.{name}") for name in _PEFT)
    if tuners is None or wrappers is None:
        return
    kind = tuners.BaseTunerLayer
    for parent in model.modules():
        for name, child in parent._modules.items():
            within = isinstance(parent, (kind, wrappers.AuxiliaryTrainingWrapper))
            if isinstance(child, kind) and not within:
                layers: list[Any] = [child]
                while isinstance(layers[-1].base_layer, kind):
                    layers.append(layers[-1].base_layer)
                weights = child.get_base_layer()._parameters.values()  # type: ignore[operator]
                if all(weight is None or _is_plain(weight) for weight in weights):
                    yield parent, name, tuple(layers)


def _is_plain(weight: nn.Parameter) -> bool:
    """Whether a number of it is a number of the model's: it is not quantised."""
    return weight.is_floating_point() and type(weight.data) is torch.Tensor


def _merged(layers: tuple[Any, ...]) -> dict[str, nn.Parameter | None]:
    """The weights of the layer inside, its adapters merged, which stay unmerged themselves.

    peft merges in place: it is given copies, and what it notes of that is taken back.
    """
    base = layers[0].get_base_layer()
    own = base._parameters
    notes = [(layer, list(layer.merged_adapters)) for layer in layers]
    vars(base)["_parameters"] = {
        name: None if weight is None else _parameter(weight.detach().clone())
        for name, weight in own.items()
    }
    try:
        for layer in reversed(layers):
            if not layer.disable_adapters and set(layer.active_adapters) - set(
                layer.merged_adapters
            ):
                layer.merge()
        found: dict[str, nn.Parameter | None] = base._parameters
        return found
    finally:
        vars(base)["_parameters"] = own
        for layer, merged in notes:
            layer.merged_adapters[:] = merged


def _with_weights(
    layer: nn.Module, weights: dict[str, nn.Parameter | None], dtype: torch.dtype | None
) -> nn.Module:
    """A layer like that one, with other weights."""
    made: nn.Module = object.__new__(type(layer))
    cast = {name: weight if weight is None or dtype is None else _parameter(weight.data.to(dtype))
            for name, weight in weights.items()}  # fmt: skip
    vars(made).update(vars(layer) | {"_parameters": cast})
    return made


def _parameter(data: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)


def _stay_in_float32(model: PreTrainedModel, dtype: torch.dtype) -> Callable[[str], bool]:
    """Return what tells whether transformers leaves a weight in float32, too, by its name."""
    names = list(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        names += getattr(model, "_keep_in_fp32_modules", None) or ()
    found = re.compile("|".join(rf"((^|\.){re.escape(name)}($|\.))" for name in names) or r"(?!)")
    return lambda path: found.search(path) is not None
