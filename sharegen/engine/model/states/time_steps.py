"""Mamba-2's time steps, within their limits in a prompt of one token as in one of several.

Mixers of Mamba-2 ("Transformers are SSMs", 2405.21060) may hold their time steps within limits.
transformers' code does so where it reads several tokens, or none came before: in prompts; and not
in its step of one token: in decoding. A prompt's token that comes alone, for prompts part before or
after it, goes by that step here, and its time step is held first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus

_NAME = "mamba2_selective_state_update"  # the step, as the modelling code of all of them calls it
_LIMITS = "time_step_limit"


def has_limits(module: nn.Module) -> bool:
    """Whether the mixer's prompts have other time steps than its decoding."""
    if not hasattr(sys.modules[type(module).__module__], _NAME):
        return False
    least, most = _limits(module)
    return least > 0 or most < math.inf


@contextmanager
def within_limits(module: nn.Module) -> Iterator[None]:
    """Let the mixer's step hold its time steps as in a prompt."""
    code = sys.modules[type(module).__module__]
    step = getattr(code, _NAME)

    def held(*arguments: Any, **how: Any) -> torch.Tensor:
        return _held(step, _limits(module), *arguments, **how)

    setattr(code, _NAME, held)
    try:
        yield
    finally:
        setattr(code, _NAME, step)


def _limits(module: nn.Module) -> tuple[float, float]:
    least, most = getattr(module, _LIMITS)
    return float(least), float(most)


def _held(
    step: Callable[..., torch.Tensor],
    limits: tuple[float, float],
    state: torch.Tensor,
    hidden: torch.Tensor,
    dt: torch.Tensor,
    *arguments: Any,
    dt_bias: torch.Tensor,
    dt_softplus: bool,
    **how: Any,
) -> torch.Tensor:
    """What `step` returns. dt: [sequences, heads, size], dt_bias: [heads, size], the same along
    the size, for which kernels look at the strides."""
    assert dt_softplus, "time steps come as the model computes them"
    steps = softplus(dt[..., :1].float() + dt_bias[..., :1].float()).clamp(*limits)
    nothing = torch.zeros_like(dt_bias[..., :1]).expand_as(dt_bias)
    return step(
        state, hidden, steps.expand_as(dt), *arguments,
        dt_bias=nothing, dt_softplus=False, **how,
    )  # fmt: skip
