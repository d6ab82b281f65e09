"""Layers that are compiled together, a few at a time.

What a layer does last, to add up a residual, and what the next one does first, its norm, are one
kernel so. The model's own code calls the layers as ever: the first of a stack computes all of them,
and the others hand on what they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer

from sharegen.engine.model.last_layer import Wanted, WantedRows, for_rows
from sharegen.engine.model.loaded import LoadedModel

_SIZES = (4, 3, 2)  # of stacks; a larger one takes longer to compile, and saves hardly more
CALLED_TOKENS = 2  # by `calls_of`


class Stack(nn.Module):
    """Consecutive layers, of which each takes what the one before it returns.

    What else they are given, the model gives to all of them alike. wanted: of a model's last
    layers, where the last one may be computed for some rows alone.
    """

    def __init__(self, layers: Sequence[nn.Module], wanted: Wanted | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.wanted = wanted
        self._before: Callable[..., Any] | None = None  # what the first layer's calls were

    def forward(
        self, hidden: torch.Tensor, rows: WantedRows | None, *args: Any, **kwargs: Any
    ) -> tuple[Any, list[torch.Tensor]]:
        """What the last layer returns, and what the others do: for nobody, but so that the compiler
        writes it down once, where every later addition would read all that it was added up from.

        rows: for which alone the last layer is computed, if so.
        """
        between = []
        *others, last = self.layers
        for layer in others:
            hidden = layer._call_impl(hidden, *args, **kwargs)
            between.append(hidden)
        if rows is not None:
            return for_rows(last, rows, hidden, *args, **kwargs), between
        return last._call_impl(hidden, *args, **kwargs), between

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the stack, and take over: the model's calls of these layers compute the stack,
        compiled.
        """
        super().compile(*args, **kwargs)
        self.take_over()

    def take_over(self) -> None:
        """Take over: from here on the model's calls of these layers compute the stack.

        One layer by itself goes on as it did where all rows are wanted.
        """
        first, *others = self.layers
        self._before = first._compiled_call_impl
        own = None if others else self._before or first._call_impl
        stack = self._compiled_call_impl or self._call_impl

        def run(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            rows = None if self.wanted is None else self.wanted.of(hidden, args, kwargs)
            if rows is None and own is not None:
                return own(hidden, *args, **kwargs)
            return stack(hidden, rows, *args, **kwargs)[0]

        first._compiled_call_impl = run
        for layer in others:
            layer._compiled_call_impl = _hand_on

    def leave(self) -> None:
        """The layers compute for themselves again."""
        first, *others = self.layers
        first._compiled_call_impl = self._before
        for layer in others:
            layer._compiled_call_impl = None


def _hand_on(hidden: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden


def decoder_layers(model: LoadedModel) -> list[nn.Module]:
    """Find the model's layers of transformers' own kind."""
    return [m for m in model.model.modules() if isinstance(m, GradientCheckpointingLayer)]


def stacks(model: LoadedModel, layers: Sequence[nn.Module]) -> list[Stack]:
    """Stacks of one size that hold all layers; none where the model's code does not allow it.

    A trial shows what the model calls its layers with.
    """
    sizes = [size for size in _SIZES if len(layers) % size == 0]
    if not sizes or model.ranks is not None or model.mixers:
        return []  # ranks' sums take the residual; mixers' layers are of many kinds
    calls = calls_of(model, layers)
    for size in sizes:
        parts = [calls[i : i + size] for i in range(0, len(calls), size)]
        if all(_is_handed_on(one, next_) for part in parts for one, next_ in pairwise(part)):
            return [Stack([call.layer for call in part]) for part in parts]
    return []


@dataclass(frozen=True)
class LayerCall:
    """What a model gave a layer, and got."""

    layer: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


def calls_of(model: LoadedModel, layers: Sequence[nn.Module]) -> list[LayerCall]:
    """The calls of a forward, in their order; none where a layer is not called just once."""
    found: list[LayerCall] = []

    def watch(layer: nn.Module) -> None:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = layer._call_impl(*args, **kwargs)
            found.append(LayerCall(layer, args, kwargs, result))
            return result

        layer._compiled_call_impl = run

    try:
        for layer in layers:
            watch(layer)
        with torch.inference_mode():
            model.trial_forward(CALLED_TOKENS, CALLED_TOKENS)
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
    return found if [call.layer for call in found] == list(layers) else []


def _is_handed_on(one: LayerCall, other: LayerCall) -> bool:
    """Whether a layer takes just what the one before it returned, and otherwise the same."""
    if not isinstance(one.result, torch.Tensor) or not one.args or not other.args:
        return False
    alike = len(one.args) == len(other.args) and one.kwargs.keys() == other.kwargs.keys()
    return (
        alike
        and other.args[0] is one.result
        and all(a is b for a, b in zip(one.args[1:], other.args[1:], strict=True))
        and all(other.kwargs[name] is value for name, value in one.kwargs.items())
    )
