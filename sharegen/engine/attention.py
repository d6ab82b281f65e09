"""The one place that chooses how the attention of a step is computed.

Models call `sharegen_attention` (model.py), which hands over to the context of the current step.
A context stores the step's keys and values, then attends through the shared nodes and the row's
own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from sharegen.engine.kv_cache import KVCache
from sharegen.engine.probe import LayerSpec
from sharegen.kernels import reference


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


def current() -> AttentionContext:
    """The context of the forward that is running."""
    assert _current is not None, "a model was called outside active()"
    return _current


@contextmanager
def active(context: AttentionContext) -> Iterator[None]:
    """Make `context` the current one for the forwards inside."""
    global _current
    previous, _current = _current, context
    try:
        yield
    finally:
        _current = previous


@dataclass(frozen=True)
class PrefillAttention:
    """Packed chunks of prompts: see reference.prefill_attention. slots: [T] where the KV goes."""

    layers: Sequence[LayerSpec]
    cache: KVCache
    plan: reference.ReferencePlan
    slots: torch.Tensor
    chunk_starts: list[int]
    position: torch.Tensor

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
        reference.store(k, v, keys, values, self.slots)
        return reference.prefill_attention(
            q, k, v, keys, values, self.plan, self.chunk_starts, self.position,
            scale=spec.scaling, window=spec.window, chunk=spec.chunk, softcap=spec.softcap,
            sinks=sinks,
        )  # fmt: skip


@dataclass(frozen=True)
class DecodeAttention:
    """One token a row: see reference.decode_attention. slots: [rows] where the KV goes."""

    layers: Sequence[LayerSpec]
    cache: KVCache
    plan: reference.ReferencePlan
    suffix: reference.SuffixPlan
    slots: torch.Tensor

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
        reference.store(k, v, keys, values, self.slots)
        return reference.decode_attention(
            q, keys, values, self.plan, self.suffix,
            scale=spec.scaling, window=spec.window, chunk=spec.chunk, softcap=spec.softcap,
            sinks=sinks,
        )  # fmt: skip
