"""States that a step of one token, or of a prompt's, changes where they lie.

A mixer's own code is given a `StateInPlace` instead of a tensor, and hands it to one of its
functions. That one does nothing but call `step`, which calls what the one who runs the model wants
called. In a compiled mixer that is one opaque operation: the mixer is one graph around what
changes its states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Key = tuple[str, int]
"""Names one of a mixer's states: "conv" or "recurrent", and its number among those."""

RECURRENT: Key = ("recurrent", 0)


Change = Callable[..., torch.Tensor]
"""Computes a step and changes a state.

Of a delta rule: (q, k, v, g, beta) -> [sequences, heads, V]; q, k: [sequences, key heads, K]; v:
[sequences, heads, V]; g, the decays' logs: [sequences, heads] or [sequences, heads, K]; beta:
[sequences, heads]. Of a convolution: (x, weight, bias, activation) -> the transpose of a contiguous
[sequences, tokens, channels]; x: [sequences, channels, tokens]; weight: [channels, size].
"""

_changes: Mapping[Key, Change] = {}


@contextmanager
def changing(changes: Mapping[Key, Change]) -> Iterator[None]:
    """What the states of the mixer that runs inside do in a step."""
    global _changes
    previous, _changes = _changes, changes
    try:
        yield
    finally:
        _changes = previous


@dataclass(frozen=True)
class StateInPlace(ABC):
    """A state that changes where it lies. key: which of its mixer's states it is."""

    key: Key

    @abstractmethod
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the function that is called with the state, for all that it does."""


class RuleInPlace(StateInPlace):
    """The state of a delta rule."""

    def step(self, *args: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply the rule. args: q, k, v; kwargs: g, beta, which have a dimension of one token
        behind the first.
        """
        q, k, v, g, beta = (x[:, 0] for x in (*args, kwargs["g"], kwargs["beta"]))
        if torch.compiler.is_compiling():
            out = _apply_rule(q, k, v, g, beta)
        else:
            out = _changes[self.key](q, k, v, g, beta)
        return out[:, None], out[:, None]  # some convert the next state, which is where it belongs


class ConvolutionInPlace(StateInPlace):
    """A convolution's last inputs."""

    def step(
        self,
        x: torch.Tensor,
        state: StateInPlace,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        """What transformers' function of this name does with a copy of the state."""
        if torch.compiler.is_compiling():
            return _convolve(x, weight, bias, activation, self.key[1])
        return _changes[self.key](x, weight, bias, activation)


@dataclass(frozen=True)
class InputsInPlace(StateInPlace):
    """A convolution's last inputs and, behind them, x: [n, channels, tokens]."""

    x: torch.Tensor

    def step(
        self,
        inputs: StateInPlace,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **how: Any,
    ) -> torch.Tensor:
        """What transformers' function of this name does, for the tokens alone."""
        if any(value is not None for value in how.values()):
            raise RuntimeError(f"its convolution is asked for {', '.join(how)}")
        return _changes[self.key](self.x, weight, bias, activation)


def in_place(keys: Iterable[Key]) -> dict[Key, StateInPlace]:
    """What a mixer is given for these states."""
    return {key: (RuleInPlace if key == RECURRENT else ConvolutionInPlace)(key) for key in keys}


def no_changes(keys: Iterable[Key]) -> dict[Key, Change]:
    """Return copies in the place of changes, for a mixer that runs only to see it run."""
    return {key: _no_rule if key == RECURRENT else _no_convolution for key in keys}


def _no_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    return v.clone()


def _no_convolution(x: torch.Tensor, *parameters: Any) -> torch.Tensor:
    return x.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)


@torch.library.custom_op("sharegen::apply_rule", mutates_args=())
def _apply_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    return _changes[RECURRENT](q, k, v, g, beta)


@_apply_rule.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    return v.new_empty(v.shape)


@torch.library.custom_op("sharegen::convolve", mutates_args=())
def _convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    number: int,
) -> torch.Tensor:
    return _changes["conv", number](x, weight, bias, activation)


@_convolve.register_fake
def _(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | None,
    number: int,
) -> torch.Tensor:
    return x.new_empty(x.shape[0], 1, x.shape[1]).transpose(1, 2)
