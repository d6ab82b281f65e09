"""Attention whose bits do not depend on the job's tree: tiles of keys at absolute positions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from sharegen.engine.execute.back_end import Put, Slots, StoreAndAttend, Stores
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.interface import AttentionContext
from sharegen.errors import UsageError
from sharegen.kernels import reference
from sharegen.kernels.absolute_plan import DecodingPlan, prefill_plan
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.reference_absolute import (
    Paths,
    absolute_attention,
    decode_slots,
    prefill_slots,
)


def refused(layers: Sequence[LayerSpec], cache: KVCache) -> str | None:
    """What of a model has no tiles at absolute positions yet; None where all has."""
    if cache.latents:
        return "a KV cache of latents"
    if cache.fp8:
        return "an FP8 KV cache"
    if any(spec.has_sinks for spec in layers):
        return "sinks"
    if any(spec.window or spec.attention_chunk for spec in layers):
        return "sliding windows and chunks of attention"
    return None


class AbsoluteAttention:
    """Attention by kernels/reference_absolute.py: every row reads its tiles from position 0 on.

    Args:
        layers: the attention of each layer that has one.
        cache: the KV cache that is read and written.
        max_rows: the most rows of a decoding step.
    """

    def __init__(self, layers: Sequence[LayerSpec], cache: KVCache, max_rows: int) -> None:
        if (what := refused(layers, cache)) is not None:
            raise UsageError(
                f"any_tree: {what} cannot have bits that do not depend on the job's tree yet: "
                "leave it out"
            )
        self.layers, self.cache = layers, cache
        self.fallback: str | None = None
        self.variant: Hashable = None
        self.shared_levels: tuple[int, ...] = ()
        self._layout: SharedLayout | None = None
        self._max_rows = max_rows
        self._plans: dict[int, DecodingPlan] = {}  # by query heads for each KV head
        self._uses_kernel = cache.device.type == "cuda"

    @property
    def generation(self) -> int:
        return sum(plan.generation for plan in self._plans.values())

    def update(self, layout: SharedLayout) -> None:
        self._layout = layout
        if not self._uses_kernel:
            return
        self.shared_levels = layout.shared_levels()
        size, device = self.cache.block_size, self.cache.device
        for group in {spec.num_heads // spec.num_kv_heads for spec in self.layers}:
            if group not in self._plans:
                self._plans[group] = DecodingPlan(group, size, self._max_rows, device)
            self._plans[group].update(layout)

    def prefill(
        self, layout: SharedLayout, chunk_starts: list[int], position: torch.Tensor, slots: Slots
    ) -> AttentionContext:
        assert slots.full is not None
        if self._uses_kernel:
            return self._by_kernel(layout, slots, position, chunk_starts)
        paths = self._paths(layout, len(position))
        return self._context(slots, prefill_slots(paths, chunk_starts, position, slots.full))

    def decode(
        self,
        slots: Slots,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
        following: bool = False,
    ) -> AttentionContext:
        assert self._layout is not None
        tables = (block_tables, prefix_length)
        if self._uses_kernel:
            return self._by_kernel(self._layout, slots, position, None, *tables)
        paths = self._paths(self._layout, len(position))
        return self._context(slots, decode_slots(paths, *tables, position, self.cache.block_size))

    def _by_kernel(
        self,
        layout: SharedLayout,
        slots: Slots,
        position: torch.Tensor,
        chunk_starts: list[int] | None,
        *tables: torch.Tensor,
    ) -> AttentionContext:
        from sharegen.kernels import absolute  # which needs Triton
        from sharegen.kernels.store import store, store_fp8

        plans = {group: each.plan for group, each in self._plans.items()}
        if chunk_starts is not None:
            plans = {}  # of the batch alone, made by the first layer that needs one

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, put: Put, *, scale: float, softcap: float | None,
                   sinks: torch.Tensor | None, **how: Any) -> torch.Tensor:  # fmt: skip
            put()
            group = q.shape[1] // k.shape[1]
            if group not in plans:
                assert chunk_starts is not None and slots.full is not None
                plans[group] = prefill_plan(
                    layout, chunk_starts, slots.full, group, self.cache.block_size
                )
            return absolute.absolute_attention(
                q, keys, values, plans[group], position, *tables, scale=scale, softcap=softcap
            )

        stores = Stores(store, store_fp8)  # prompts' keys are rotated as drawn tokens' are
        return StoreAndAttend(self.layers, self.cache, slots, stores, attend)

    def _paths(self, layout: SharedLayout, num_rows: int) -> Paths:
        return Paths.of(layout, num_rows, self.cache.block_size, self.cache.device)

    def _context(self, slots: Slots, where: torch.Tensor) -> AttentionContext:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, put: Put, *, scale: float, softcap: float | None,
                   sinks: torch.Tensor | None, **how: Any) -> torch.Tensor:  # fmt: skip
            assert sinks is None
            put()
            return absolute_attention(q, keys, values, where, scale=scale, softcap=softcap)

        attention: Callable[..., torch.Tensor] = attend
        stores = Stores(reference.store, reference.store_fp8)
        return StoreAndAttend(self.layers, self.cache, slots, stores, attention)
