"""RoPE frequencies that change with length, held at what they are below the original length.

"dynamic" and "longrope" recompute their frequencies from the longest position of a batch, with a
branch on the host. Keys that were cached under other frequencies would then be wrong, and the
frequencies of one sequence would depend on its neighbours. Below the original length they are
constant: there the engine is exact, and lengths above it are refused. So it is with phimoe's scales
of cosines and sines, which any scaled RoPE of it has two of, by length.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_STEADY = "default"  # a type for which transformers' rotary embeddings recompute nothing
_LONG_SCALE = "long_mscale"  # beyond the original length


@dataclass(frozen=True)
class HeldFrequencies:
    """One rotary embedding whose frequencies were frozen; length: tokens up to which they hold."""

    module: Any
    rope_type: Any
    length: int
    reason: str

    def release(self) -> None:
        """Let the frequencies move again."""
        self.module.rope_type = self.rope_type


def hold_frequencies(model: nn.Module) -> list[HeldFrequencies]:
    """Freeze every rotary embedding of `model` that would recompute its frequencies."""
    held = []
    module: Any
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        if isinstance(rope_type, str):
            if _moves(rope_type) or _has_two_scales(module, rope_type):
                held.append(_hold(module, rope_type, rope_type, ""))
                module.rope_type = _STEADY
        elif isinstance(rope_type, dict):
            moving = {layer: kind for layer, kind in rope_type.items() if _moves(kind)}
            for layer, kind in moving.items():
                held.append(_hold(module, rope_type, kind, layer))
            if moving:
                module.rope_type = rope_type | dict.fromkeys(moving, _STEADY)
    return held


def make_frequencies_once(model: nn.Module, undo: ExitStack) -> None:
    """Let a rotary embedding that makes its frequencies anew in every forward keep them.

    phimoe's makes them on the host, and for a scaled RoPE asks there for the longest position: a
    GPU's step that copies from the host, or is waited for, is captured in no CUDA graph. undo:
    takes what takes that back.
    """
    for module in model.modules():
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if code is not None and {"rope_init_fn", "inv_freq", "short_mscale"} <= _names_in(code):
            module.forward = _kept_frequencies(module)
            undo.callback(delattr, module, "forward")


def _names_in(code: Any) -> set[str]:
    constants = {each for each in code.co_consts if isinstance(each, str)}
    return {*code.co_names, *code.co_varnames, *constants}


def _kept_frequencies(module: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """What its forward computes below the original length, where the short scale holds."""
    parameters = module.config.rope_parameters
    made, scale = module.rope_init_fn(module.config)
    frequencies = made.to(module.inv_freq.device, torch.float32)
    if parameters["rope_type"] != _STEADY:
        scale = parameters["short_mscale"]

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].float() * frequencies
        both = torch.cat((angles, angles), dim=-1)
        return (both.cos() * scale).to(x.dtype), (both.sin() * scale).to(x.dtype)

    return forward


def _moves(rope_type: Any) -> bool:
    return isinstance(rope_type, str) and ("dynamic" in rope_type or rope_type == "longrope")


def _has_two_scales(module: Any, rope_type: str) -> bool:
    config = getattr(module, "config", None)
    return rope_type != _STEADY and _LONG_SCALE in (getattr(config, "rope_parameters", None) or {})


def _hold(module: Any, before: Any, kind: str, layer: str) -> HeldFrequencies:
    parameters = module.config.rope_parameters
    parameters = parameters[layer] if layer else parameters
    prefix = f"{layer}_" if layer else ""
    length = module.original_max_seq_len
    if kind == "longrope" or _LONG_SCALE in parameters:
        length = parameters["original_max_position_embeddings"]
    original = getattr(module, f"{prefix}original_inv_freq")
    # An earlier use may have left the frequencies of a longer text, and a later one of its owner's
    # may leave some again.
    current = getattr(module, f"{prefix}inv_freq")
    held = original.detach().to(current.device, copy=True)
    setattr(module, f"{prefix}inv_freq", held)
    reason = f"its {kind} RoPE frequencies change beyond {length} tokens"
    return HeldFrequencies(module, before, int(length), reason)
