"""Mamba's scan of several tokens, gone on with from a state.

The mixers of jamba, mamba, falcon_mamba and zamba start their scan of several tokens from nothing,
whatever state they are given: its kernel knows no other way. The scan is linear in the state (Gu
and Dao, "Mamba", 2312.00752, equation 2), so what the state would have added is added here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu, softplus

_NAME = "mamba_selective_scan"  # as the modelling code of all four calls it
_PIECE = 256  # tokens at a time: each takes as much memory as the state

Scan = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def starts_from_nothing(module: nn.Module) -> bool:
    """Whether the mixer is one of these."""
    return hasattr(sys.modules[type(module).__module__], _NAME)


@contextmanager
def scanning_from(module: nn.Module, state: torch.Tensor) -> Iterator[None]:
    """Let the mixer's scan go on from a state: [sequences, channels, size].

    Where the state has heads behind its sequences, the mixer scans them one after the other.
    """
    code = sys.modules[type(module).__module__]
    scan = getattr(code, _NAME)
    states = iter(state.unbind(1) if state.dim() == 4 else [state])

    def go_on(*arguments: Any, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return _with_state(scan, next(states), *arguments, **how)

    setattr(code, _NAME, go_on)
    try:
        yield
    finally:
        setattr(code, _NAME, scan)


def _with_state(
    scan: Scan,
    state: torch.Tensor,
    hidden: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    z: torch.Tensor | None,
    delta_bias: torch.Tensor | None,
    **how: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (output [sequences, channels, tokens], last state), as `scan` returns them from
    nothing.

    state: [sequences, channels, size]; hidden, dt, z: [sequences, channels, tokens]; A: [channels,
    size]; B, C: [sequences, size, tokens].
    """
    output, last = scan(hidden, dt, A, B, C, z=z, delta_bias=delta_bias, **how)
    steps = dt.float() if delta_bias is None else dt.float() + delta_bias.float()[:, None]
    elapsed = softplus(steps).cumsum(-1)
    from_state = torch.empty_like(elapsed)
    for first in range(0, elapsed.shape[-1], _PIECE):
        piece = slice(first, first + _PIECE)
        left = torch.exp(A[None, :, None] * elapsed[..., piece, None]) * state.float()[:, :, None]
        from_state[..., piece] = torch.einsum("bdln,bnl->bdl", left, C[..., piece].float())
    if z is not None:
        from_state *= silu(z.float())
    last = last + torch.exp(A * elapsed[..., -1, None]) * state
    return output + from_state.to(output.dtype), last
