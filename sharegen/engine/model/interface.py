"""Where a model's attention leaves the model: whoever runs a forward says who computes it.

Models call `sharegen_attention` (load.py), which hands over to the context that is current. What
attention needs beyond the tensors travels in that object, since some models drop keyword arguments
that they don't know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from sharegen.engine.model.fp8 import products as fp8
from sharegen.errors import UsageError


class AttentionContext(Protocol):
    """What one forward's attention needs to know beyond the tensors that the model passes."""

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute a layer's attention.

        Args:
            q: [T, Hq, Dk].
            k: [T, Hkv, Dk].
            v: [T, Hkv, Dv].
            sinks: [Hq], or None.

        Returns:
            [T, Hq, Dv].
        """
        ...


Angles = tuple[torch.Tensor, torch.Tensor]
"""cos, sin: [T, D] of a rotary embedding whose halves are rotated against each other."""


@runtime_checkable
class Fusing(Protocol):
    """A context that also does what comes before attention and after it."""

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        angles: Angles | None = None,
    ) -> torch.Tensor:
        """Compute attention as above. angles: by which queries and keys are to be rotated first."""
        ...

    def attend_rows(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        angles: Angles | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the same, a token's heads as one row, as `fp8.quantise_rows` gives it."""
        ...


@runtime_checkable
class Spreading(Protocol):
    """A context that keeps the latents which keys and values are made of (`attention/`)."""

    def spread(self, layer_idx: int, latent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Make keys and values of the latents of a layer whose attention is called next.

        Args:
            latent: [T, rank]; its memory is another's afterwards.
            weight: [heads * size, rank].

        Returns:
            [T, heads * size], of whatever numbers where the context attends to the latents
            themselves.
        """
        ...


class StateContext(Protocol):
    """What one forward's mixers need to know: which tokens are a sequence, and from which state."""

    def mix(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        """Run the model's mixer of that number: hidden [T, size] of all tokens gives [T, width]."""
        ...


OWN_HEADS = "sharegen_own_heads"
"""On an attention module: (first, count) of the query heads and of those of keys and values that
this rank has, where the module computes places for all."""


def own_heads(
    module: nn.Module, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, of q [1, Hq, T, Dk] and k, v [1, Hkv, T, *], those heads that this rank has."""
    own = getattr(module, OWN_HEADS, None)
    if own is None:
        return q, k, v
    queries, keys = own
    return q.narrow(1, *queries), k.narrow(1, *keys), v.narrow(1, *keys)


_IN_USE = "the model is in use by an LLM: close that before you call the model"

_current: AttentionContext | None = None
_states: StateContext | None = None
_called: list[int] = []  # layers whose attention the forward that is running has called so far
_mixed = 0  # mixers that it has called


def current() -> AttentionContext:
    """The context of the forward that is running. Raises UsageError where its owner calls it."""
    if _current is None:
        raise UsageError(_IN_USE)
    return _current


@contextmanager
def active(context: AttentionContext, states: StateContext | None = None) -> Iterator[None]:
    """Make `context` the current one for the forwards inside; states: where there are mixers."""
    global _current, _states
    previous = _current, _states
    _current, _states = context, states
    _called.clear()
    try:
        yield
    finally:
        _current, _states = previous


@contextmanager
def each_layer_once(num_layers: int, num_mixers: int = 0) -> Iterator[None]:
    """Assert that the forward inside calls the attention of every layer, and none twice.

    So with the mixers. Compiled layers are told apart by the order of their calls: one left out
    would have the next one's keys.
    """
    global _mixed
    _called.clear()
    _mixed = 0
    yield
    assert sorted(_called) == list(range(num_layers)), f"attention was called for {_called}"
    assert _mixed == num_mixers, f"{_mixed} mixers were called of {num_mixers}"


def attend(
    layer_idx: int | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Compute a layer's attention by the current context, whose shapes it has; None: the next
    layer's.
    """
    return current().attend(_call(layer_idx), q, k, v, sinks)


def _call(layer_idx: int | None) -> int:
    layer_idx = len(_called) if layer_idx is None else layer_idx
    _called.append(layer_idx)
    return layer_idx


def spread(latent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Make keys and values of the next layer's latents: [..., rank] -> [..., heads * size].

    A model that is called by its owner, or with a stand-in for attention, multiplies by the weight.
    """
    if not isinstance(_current, Spreading):
        return torch.nn.functional.linear(latent, weight)
    made = _current.spread(len(_called), latent.reshape(-1, latent.shape[-1]), weight)
    return made.view(*latent.shape[:-1], weight.shape[0])


@torch.library.custom_op("sharegen::spread", mutates_args=())
def spread_in_order(latent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Do the same for compiled models: opaque to the compiler, as attention is."""
    return spread(latent, weight)


@spread_in_order.register_fake
def _(latent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return latent.new_empty(*latent.shape[:-1], weight.shape[0])


def mix(hidden: torch.Tensor) -> torch.Tensor:
    """The next mixer's work, by the current context: [T, size] -> [T, width]. Raises as current."""
    global _mixed
    if _states is None:
        raise UsageError(_IN_USE)
    index, _mixed = _mixed, _mixed + 1
    return _states.mix(index, hidden)


@torch.library.custom_op("sharegen::attend", mutates_args=())
def attend_in_order(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the next layer's attention, for compiled models: opaque to the compiler.

    Layers are told apart by the order of the calls, so that one compiled layer serves them all.
    cos, sin: angles by which queries and keys are rotated first.
    """
    context, layer_idx = current(), _call(None)
    if isinstance(context, Fusing):
        return context.attend(layer_idx, q, k, v, sinks, _both(cos, sin)).contiguous()
    q, k = _turned(q, k, _both(cos, sin))
    return context.attend(layer_idx, q, k, v, sinks).contiguous()


@attend_in_order.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[1], v.shape[2])


@torch.library.custom_op("sharegen::attend_rows", mutates_args=())
def attend_rows_in_order(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the same, and return its rows in FP8: e4m3 [T, Hq * Dv], scales [T, 1]."""
    context, layer_idx = current(), _call(None)
    if isinstance(context, Fusing):
        return context.attend_rows(layer_idx, q, k, v, sinks, _both(cos, sin))
    q, k = _turned(q, k, _both(cos, sin))
    return fp8.rows_of(context.attend(layer_idx, q, k, v, sinks).flatten(1))


@attend_rows_in_order.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    sinks: torch.Tensor | None,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = q.new_empty(q.shape[0], q.shape[1] * v.shape[2], dtype=fp8.E4M3)
    return numbers, q.new_empty(q.shape[0], 1, dtype=torch.float32)


def _both(cos: torch.Tensor | None, sin: torch.Tensor | None) -> Angles | None:
    return None if cos is None or sin is None else (cos, sin)


def _turned(
    q: torch.Tensor, k: torch.Tensor, angles: Angles | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return (q, k) if angles is None else rotate(q, k, angles)


def rotate(q: torch.Tensor, k: torch.Tensor, angles: Angles) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q [T, Hq, D] and k [T, Hkv, D] by the angles."""
    if q.is_cuda:
        from sharegen.kernels import rotate as kernels  # which needs Triton

        return kernels.rotate(q, k, *angles)
    cos, sin = (x[:, None] for x in angles)
    halves = (x.chunk(2, dim=-1) for x in (q, k))
    turned = [torch.cat((-second, first), dim=-1) for first, second in halves]
    return q * cos + turned[0] * sin, k * cos + turned[1] * sin


@torch.library.custom_op("sharegen::mix", mutates_args=())
def mix_in_order(hidden: torch.Tensor, width: int | None = None) -> torch.Tensor:
    """The next mixer's work, for compiled models: opaque to the compiler, as attention is.

    width: of the result; None: as wide as `hidden`.
    """
    mixed = mix(hidden).contiguous()
    return mixed.clone() if mixed.data_ptr() == hidden.data_ptr() else mixed


@mix_in_order.register_fake
def _(hidden: torch.Tensor, width: int | None = None) -> torch.Tensor:
    return torch.empty_like(hidden) if width is None else hidden.new_empty(hidden.shape[0], width)


class ValuesOnly:
    """A stand-in for attention, without a KV cache: every token sees only itself."""

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
