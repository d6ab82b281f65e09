"""Which layers' latents are kept, and that the contexts of forwards see them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import nn

from sharegen.engine.model import interface, last_layer
from sharegen.engine.model.attention.latents import SPREADING
from sharegen.engine.model.attention.layer_spec import LayerSpec

_LEAST_GAIN = 2  # of a token's bytes: below that nothing is won


def all_or_none(layers: list[LayerSpec]) -> list[LayerSpec]:
    """The layers with latents where all have such, of one shape, and gain by it; else without.

    Windows and the like stay what they are for keys and values that are spread out.
    """
    same = len({(layer.sizes, layer.latent) for layer in layers}) == 1
    plain = all(
        layer.latent is not None
        and layer.window is None
        and layer.attention_chunk is None
        and layer.softcap is None
        and not layer.has_sinks
        for layer in layers
    )
    if same and plain and latents_per_token(layers[0], torch.bfloat16) >= _LEAST_GAIN:
        return layers
    return [replace(layer, latent=None) for layer in layers]


def latents_per_token(layer: LayerSpec, dtype: torch.dtype) -> int:
    """How many latents take the memory of one token that is spread out, rounded up."""
    assert layer.latent is not None
    numbers = layer.num_kv_heads * (layer.key_size + layer.value_size)
    return -(-numbers // layer.latent.width(layer.key_size, dtype))


def install_spreading(
    modules: Sequence[nn.Module], layers: Sequence[LayerSpec], undo: ExitStack
) -> None:
    """Have the contexts of forwards see the latents, until `undo` is closed."""
    for module, layer in zip(modules, layers, strict=True):
        inner: Any = getattr(module, SPREADING, None)
        if layer.latent is not None and "forward" not in vars(inner):
            inner.forward = MethodType(_spread, inner)
            undo.callback(vars(inner).pop, "forward", None)


def _spread(linear: nn.Linear, latent: torch.Tensor) -> torch.Tensor:
    """What the layer makes of latents [..., T, rank]: [..., T, heads * size]."""
    if last_layer.attended() is not None:  # run again for some rows, whose attention is known
        return nn.functional.linear(latent, linear.weight)
    if torch.compiler.is_compiling():
        return interface.spread_in_order(latent, linear.weight)
    return interface.spread(latent, linear.weight)
