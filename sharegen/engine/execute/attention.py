"""The one place that chooses how the attention of a step is computed.

Models call `sharegen_attention` (model.py), which hands over to the context of the current step.
A context stores the step's keys and values, then attends through the shared nodes and the row's
own tokens.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.probe import LayerSpec
from sharegen.kernels import reference
from sharegen.kernels.cost import CostModel
from sharegen.kernels.layout import SharedLayout


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
        """q: [T, Hq, Dk], k: [T, Hkv, Dk], v: [T, Hkv, Dv] -> [T, Hq, Dv]; sinks: [Hq]."""
        ...


_current: AttentionContext | None = None
_next_layer = 0  # of the compiled forward that is running


def current() -> AttentionContext:
    """The context of the forward that is running."""
    assert _current is not None, "a model was called outside active()"
    return _current


@contextmanager
def active(context: AttentionContext) -> Iterator[None]:
    """Make `context` the current one for the forwards inside."""
    global _current, _next_layer
    previous, _current, _next_layer = _current, context, 0
    try:
        yield
    finally:
        _current = previous


@torch.library.custom_op("sharegen::attend", mutates_args=())
def attend_in_order(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    """The next layer's attention, for compiled models: opaque to the compiler.

    Layers are told apart by the order of the calls, so that one compiled layer serves them all.
    """
    global _next_layer
    layer_idx, _next_layer = _next_layer, _next_layer + 1
    return current().attend(layer_idx, q, k, v, sinks).contiguous()


@attend_in_order.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor | None
) -> torch.Tensor:
    return q.new_empty(q.shape[0], q.shape[1], v.shape[2])


class Attention(Protocol):
    """One way to compute attention over one KV cache: what the runner builds contexts with."""

    @property
    def fallback(self) -> str | None:
        """Why the kernels do not serve this model on a GPU; None where they do, and on a CPU."""
        ...

    @property
    def generation(self) -> int:
        """Grows when captured graphs no longer read the right buffers."""
        ...

    @property
    def variant(self) -> Hashable:
        """Which of several ways a step is computed: each has graphs of its own."""
        ...

    @property
    def shared_levels(self) -> tuple[int, ...]:
        """Levels of the tree (0: roots) with nodes that are read once for all rows under them."""
        ...

    def update(self, layout: SharedLayout) -> None:
        """The shared nodes of the decoding steps to come."""
        ...

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: torch.Tensor,
    ) -> AttentionContext:
        """Packed chunks of prompts. position: [T] int32; slots: [T] where the KV goes."""
        ...

    def decode(
        self,
        slots: torch.Tensor,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
    ) -> AttentionContext:
        """One token a row; [rows, ...], int32 but for slots, int64.

        A dead row has prefix_length 0, position -1.
        """
        ...


def attention_for(
    layers: Sequence[LayerSpec],
    cache: KVCache,
    max_rows: int,
    max_tokens: int,
    costs: CostModel | None = None,
) -> Attention:
    """The kernels where they can serve every layer, else the reference.

    max_rows: of a decoding step; max_tokens: of a prefill batch. costs: what decides which nodes
    are shared; by default what is known of the device.
    """
    if cache.device.type != "cuda":
        return ReferenceAttention(layers, cache)
    if importlib.util.find_spec("triton") is None:
        return ReferenceAttention(layers, cache, "Triton is not installed")
    from sharegen.engine.execute.kernel_attention import KernelAttention, unsupported

    reason = unsupported(layers, cache)
    if reason is not None:
        return ReferenceAttention(layers, cache, reason)
    return KernelAttention(layers, cache, max_rows, max_tokens, costs)


class ReferenceAttention:
    """Plain torch: see kernels/reference.py."""

    def __init__(
        self, layers: Sequence[LayerSpec], cache: KVCache, fallback: str | None = None
    ) -> None:
        self.layers = layers
        self.cache = cache
        self.fallback = fallback
        self.generation = 0
        self.variant: Hashable = None
        self.shared_levels: tuple[int, ...] = ()
        self._plan: reference.ReferencePlan | None = None

    def update(self, layout: SharedLayout) -> None:
        self.shared_levels = layout.shared_levels()
        self._plan = self._plan_of(layout)

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: torch.Tensor,
    ) -> AttentionContext:
        plan = self._plan_of(layout)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, **how: Any) -> torch.Tensor:  # fmt: skip
            return reference.prefill_attention(
                q, k, v, keys, values, plan, chunk_starts, position, **how
            )

        return StoreAndAttend(self.layers, self.cache, slots, reference.store, attend)

    def decode(
        self,
        slots: torch.Tensor,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
    ) -> AttentionContext:
        assert self._plan is not None
        plan = self._plan
        size = self.cache.block_size
        suffix = reference.SuffixPlan(plan, size, block_tables, prefix_length, position)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, **how: Any) -> torch.Tensor:  # fmt: skip
            return reference.decode_attention(q, keys, values, plan, suffix, **how)

        return StoreAndAttend(self.layers, self.cache, slots, reference.store, attend)

    def _plan_of(self, layout: SharedLayout) -> reference.ReferencePlan:
        return reference.ReferencePlan(layout, self.cache.block_size, self.cache.device)


@dataclass(frozen=True)
class StoreAndAttend:
    """A step's context: keys and values go to their slots first, so that all rows can read them.

    store(k, v, keys, values, slots); attend(q, k, v, keys, values, scale=, window=, chunk=,
    softcap=, sinks=) -> [T, num_heads, value_size].
    """

    layers: Sequence[LayerSpec]
    cache: KVCache
    slots: torch.Tensor
    store: Callable[..., None]
    attention: Callable[..., torch.Tensor]

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        spec = self.layers[layer_idx]
        keys, values = self.cache.keys[layer_idx], self.cache.values[layer_idx]
        self.store(k, v, keys, values, self.slots)
        return self.attention(
            q, k, v, keys, values, scale=spec.scaling, window=spec.window, chunk=spec.chunk,
            softcap=spec.softcap, sinks=sinks,
        )  # fmt: skip
