"""The kernels that change states where they lie, and what mixers call in place of their code."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sharegen.engine.execute.step_slots import Places, StepSlots


@dataclass(frozen=True)
class Kernels:
    """The kernels that change states where they lie.

    They are those of kernels/delta_rule.py and kernels/conv_step.py, and take what these do.
    """

    delta_rule: Callable[..., torch.Tensor]
    settle: Callable[..., None]
    room_for_tokens: Callable[[int, int, torch.dtype], int]
    convolve: Callable[..., torch.Tensor]
    convolve_chunk: Callable[..., torch.Tensor]


def kernel_errors() -> tuple[type[Exception], ...]:
    """Return what is raised where a kernel cannot be taken.

    It may not compile, take too much shared memory, or do less with a state than the mixer does.
    """
    found: list[type[Exception]] = [
        RuntimeError, AssertionError, TypeError, AttributeError, KeyError,
    ]  # fmt: skip
    if importlib.util.find_spec("triton") is not None:
        from triton.errors import TritonError

        found.append(TritonError)
    return tuple(found)


@dataclass(frozen=True)
class ApplyRule:
    """Applies a delta rule to its states at once; states: [slots, heads, K, V]."""

    kernel: Callable[..., torch.Tensor]
    states: torch.Tensor
    slots: StepSlots

    def __call__(self, *parts: torch.Tensor) -> torch.Tensor:
        places = self.slots.places
        return self.kernel(*parts, self.states, places.read, places.write)


@dataclass(frozen=True)
class Keep(ApplyRule):
    """Applies a delta rule whose sequences keep their tokens.

    dtype: the dtype that tokens are kept in. told: called with the number of heads of the keys.
    """

    dtype: torch.dtype
    told: Callable[[int], None]

    def __call__(self, *parts: torch.Tensor) -> torch.Tensor:
        _, key, value, *_ = parts
        if value.dtype != self.dtype:
            raise RuntimeError(f"values are in {value.dtype}, and the model in {self.dtype}")
        self.told(key.shape[1])
        slots = self.slots
        return self.kernel(*parts, self.states, slots.state, slots.places.write, slots.kept)


@dataclass(frozen=True)
class Convolve:
    """A convolution's last inputs move on. states: [slots, columns, channels]."""

    kernel: Callable[..., torch.Tensor]
    states: torch.Tensor
    places: Places

    def __call__(self, x: torch.Tensor, *parameters: Any) -> torch.Tensor:
        places = self.places
        where = (places.read, places.write, places.position)
        return self.kernel(x, self.states, *where, *parameters)


def step_kernels(device: torch.device) -> Kernels | None:
    """The kernels with which states go on where they lie, where the device runs them."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from sharegen.kernels.conv_step import conv_chunk, conv_step
    from sharegen.kernels.delta_rule import delta_rule_step, room_for_tokens, settle

    return Kernels(delta_rule_step, settle, room_for_tokens, conv_step, conv_chunk)
