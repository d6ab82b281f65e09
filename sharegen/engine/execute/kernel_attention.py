"""Attention by the Triton kernels: plans on the device, updated when the tree changes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from sharegen.engine.execute.back_end import Put, Slots, StoreAndAttend, Stores
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.interface import AttentionContext
from sharegen.kernels import tiles
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import CostModel, load_costs
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.prefill import PrefillPlan, prefill_attention
from sharegen.kernels.rotate import rotate_and_store
from sharegen.kernels.store import store, store_fp8

_STORES = Stores(store, store_fp8)
_OF_DECODING = Stores(store, store_fp8, rotate_and_store)


def shape_of(spec: LayerSpec, cache: KVCache) -> tiles.AttentionShape:
    """Return what the kernels' plans depend on: layers that differ in windows alone share them."""
    return tiles.AttentionShape(
        spec.num_heads, spec.num_kv_heads, spec.key_size, spec.value_size, cache.block_size,
        cache.dtype,
    )  # fmt: skip


def unsupported(layers: Sequence[LayerSpec], cache: KVCache) -> str | None:
    """Return why the kernels cannot serve some layer; None when they serve all."""
    limit = tiles.shared_memory_limit(cache.device)
    for spec in layers:
        reason = tiles.unsupported(shape_of(spec, cache), spec.scaling, limit)
        if reason is not None:
            return reason
    return None


class KernelAttention:
    """Attention by kernels/decode.py and kernels/prefill.py, with a plan for each shape of layer.

    Args:
        layers: the attention of each layer that has one.
        cache: the KV cache that is read and written.
        max_rows: the most rows of a decoding step.
        max_tokens: the most tokens of a prefill batch.
        costs: decides which nodes are shared reads; by default what was fitted on the device.
        deterministic: whether a row's bits depend on the job's tree alone, not on the batch; costs
            are not asked then.
        arriving: as `AttentionPlan` takes it.
    """

    fallback = None

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        cache: KVCache,
        max_rows: int,
        max_tokens: int,
        costs: CostModel | None = None,
        deterministic: bool = False,
        arriving: bool = False,
    ) -> None:
        self.layers = layers
        self.cache = cache
        shapes = dict.fromkeys(shape_of(spec, cache) for spec in layers)
        costs = costs or load_costs(torch.cuda.get_device_name(cache.device))
        fp8 = bool(cache.fp8)
        self._plans = {
            shape: AttentionPlan(
                shape, max_rows, cache.device, costs=costs, fp8_suffixes=fp8,
                deterministic=deterministic, arriving=arriving,
            )
            for shape in shapes
        }  # fmt: skip
        self._prefill_plans = {
            shape: PrefillPlan(shape, max_tokens, cache.device, deterministic=deterministic)
            for shape in shapes
        }

    @property
    def generation(self) -> int:
        return sum(plan.generation for plan in self._plans.values())

    @property
    def variant(self) -> Hashable:
        return tuple(plan.variant for plan in self._plans.values())

    @property
    def shared_levels(self) -> tuple[int, ...]:
        return next(iter(self._plans.values())).shared_levels

    def update(self, layout: SharedLayout) -> None:
        for plan in self._plans.values():
            plan.update(layout)

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: Slots,
    ) -> AttentionContext:
        for plan in self._prefill_plans.values():
            plan.update(layout, chunk_starts)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, put: Put, **how: Any) -> torch.Tensor:  # fmt: skip
            put()
            plan = self._prefill_plans[self._shape(q, k, v)]
            return prefill_attention(q, k, v, keys, values, plan, position, **how)

        return StoreAndAttend(self.layers, self.cache, slots, _STORES, attend)

    def decode(
        self,
        slots: Slots,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
        following: bool = False,
    ) -> AttentionContext:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, put: Put, **how: Any) -> torch.Tensor:  # fmt: skip
            plan = self._plans[self._shape(q, k, v)]
            return decode_attention(
                q, keys, values, plan, block_tables, prefix_length, position, put=put,
                following=following, **how,
            )  # fmt: skip

        return StoreAndAttend(self.layers, self.cache, slots, _OF_DECODING, attend, gives_rows=True)

    def _shape(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tiles.AttentionShape:
        return tiles.AttentionShape(
            q.shape[1], k.shape[1], q.shape[2], v.shape[2], self.cache.block_size, self.cache.dtype
        )
