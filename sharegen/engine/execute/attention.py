"""The one place that chooses how the attention of a step is computed.

A back end makes a context for each step, which stores the step's keys and values, then attends
through the shared nodes and the row's own tokens.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from sharegen.engine.execute.absolute_attention import AbsoluteAttention
from sharegen.engine.execute.back_end import Attention, Put, Slots, StoreAndAttend, Stores
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.execute.latent_step import LatentStep, latent_stores
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.interface import AttentionContext, ValuesOnly
from sharegen.errors import UsageError
from sharegen.kernels import flash, latents, reference, reference_latents
from sharegen.kernels.cost import EACH_ROW, CostModel
from sharegen.kernels.layout import SharedLayout


def attention_for(
    layers: Sequence[LayerSpec],
    cache: KVCache,
    max_rows: int,
    max_tokens: int,
    costs: CostModel | None = None,
    deterministic: bool = False,
    arriving: bool = False,
    any_tree: bool = False,
) -> Attention:
    """Return the kernels where they can serve every layer, else the reference.

    Args:
        layers: the attention of each layer that has one.
        cache: the KV cache that is read and written.
        max_rows: the most rows of a decoding step.
        max_tokens: the most tokens of a prefill batch.
        costs: decides which nodes are shared reads; by default what is known of the device.
        deterministic: whether a row's bits may not depend on the batch on a GPU; they never do on a
            CPU, in float32. Raises UsageError where no kernel serves the layers.
        arriving: whether rows come and go for long, as a server's do.
        any_tree: whether a row's bits may not depend on the job's tree, either.
    """
    if not layers:
        return NoAttention()
    if any_tree:
        return AbsoluteAttention(layers, cache, max_rows)
    if cache.device.type != "cuda":
        return ReferenceAttention(layers, cache, costs=costs)
    reason: str | None = "Triton is not installed"
    if importlib.util.find_spec("triton") is not None:
        from sharegen.engine.execute.kernel_attention import KernelAttention, unsupported

        reason = unsupported(layers, cache)
        if reason is None and cache.latents:
            from sharegen.engine.execute.kernel_latents import KernelLatents

            return KernelLatents(layers, cache, max_rows, max_tokens)
        if reason is None:
            return KernelAttention(
                layers, cache, max_rows, max_tokens, costs, deterministic, arriving
            )
    if deterministic:
        raise UsageError(
            f"deterministic: plain torch would compute attention on this GPU ({reason}), and its "
            "bits depend on the batch: leave it out, or use a card and a model that the kernels "
            "serve"
        )
    return ReferenceAttention(layers, cache, reason, costs)


class NoAttention:
    """Stands in where every layer of a model keeps a state, and none keys and values."""

    def __init__(self) -> None:
        self.fallback: str | None = None
        self.generation = 0
        self.variant: Hashable = None
        self.shared_levels: tuple[int, ...] = ()

    def update(self, layout: SharedLayout) -> None:
        """There is nothing to read."""

    def prefill(self, *step: Any) -> AttentionContext:
        return ValuesOnly()

    def decode(self, *step: Any) -> AttentionContext:
        return ValuesOnly()


class ReferenceAttention:
    """Attention by torch's own operations: kernels/reference.py, and kernels/flash.py on a CPU.

    Every node is a shared read, whatever it costs, except with EACH_ROW.

    Args:
        layers: the attention of each layer that has one.
        cache: the KV cache that is read and written.
        fallback: why the kernels do not serve the model; None on a CPU.
        costs: EACH_ROW to read every node per sequence; all else is ignored.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        cache: KVCache,
        fallback: str | None = None,
        costs: CostModel | None = None,
    ) -> None:
        self.layers = layers
        self.cache = cache
        self.fallback = fallback
        self.generation = 0
        self.variant: Hashable = None
        self.shared_levels: tuple[int, ...] = ()
        on_cpu = cache.device.type == "cpu"
        self._make_plan = flash.FlashPlan if on_cpu else reference.ReferencePlan
        self._flashed = [on_cpu and _is_flashed(spec) for spec in layers]
        self._token_numbers = max(spec.num_kv_heads * spec.key_size for spec in layers)
        self._plan: reference.ReferencePlan | None = None
        self._is_read_by_each = costs == EACH_ROW

    def update(self, layout: SharedLayout) -> None:
        if self._is_read_by_each:
            layout = layout.row_by_row()
        self.shared_levels = layout.shared_levels()
        self._plan = self._plan_of(layout)

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: Slots,
    ) -> AttentionContext:
        plan = self._plan_of(layout)
        if self.cache.latents:
            return self._prefill_latents(plan, chunk_starts, position, slots)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, put: Put, **how: Any) -> torch.Tensor:  # fmt: skip
            put()
            return reference.prefill_attention(
                q, k, v, keys, values, plan, chunk_starts, position, **how
            )

        return self._context(slots, attend)

    def decode(
        self,
        slots: Slots,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
        following: bool = False,
    ) -> AttentionContext:
        assert self._plan is not None
        plan = self._plan
        size = self.cache.block_size
        tables = (block_tables, prefix_length, position)
        if self.cache.latents:
            return self._decode_latents(plan, reference.SuffixPlan(plan, size, *tables), slots)
        plain = flashed = None
        if not all(self._flashed):
            plain = reference.SuffixPlan(plan, size, *tables)
        if any(self._flashed):
            flashed = flash.FlashSuffixPlan(plan, size, *tables, self._token_numbers)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, put: Put, *, window: int | None,
                   attention_chunk: int | None, softcap: float | None,
                   **how: Any) -> torch.Tensor:  # fmt: skip
            put()
            sizes = keys.shape[-1], values.shape[-1]
            if flashed is not None and flash.serves_layer(*sizes, softcap, window, attention_chunk):
                return flash.decode_attention(q, keys, values, plan, flashed, **how)
            assert plain is not None
            return reference.decode_attention(
                q, keys, values, plan, plain, window=window, attention_chunk=attention_chunk,
                softcap=softcap, **how,
            )  # fmt: skip

        return self._context(slots, attend)

    def _prefill_latents(
        self,
        plan: reference.ReferencePlan,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: Slots,
    ) -> AttentionContext:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, own: latents.Latents, put: Put, *,
                   scale: float) -> torch.Tensor:  # fmt: skip
            put()
            return reference.prefill_attention(
                q, k, v, keys, values, plan, chunk_starts, position, fp8=own, scale=scale
            )

        return LatentStep(
            self.layers, self.cache, slots, latent_stores(self.cache), attend, spreads=True
        )

    def _decode_latents(
        self, plan: reference.ReferencePlan, suffix: reference.SuffixPlan, slots: Slots
    ) -> AttentionContext:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, own: latents.Latents, put: Put, *,
                   scale: float) -> torch.Tensor:  # fmt: skip
            put()
            return reference_latents.decode_latents(q, keys, values, own, plan, suffix, scale=scale)

        return LatentStep(
            self.layers, self.cache, slots, latent_stores(self.cache), attend, spreads=False
        )

    def _context(self, slots: Slots, attend: Callable[..., torch.Tensor]) -> AttentionContext:
        stores = Stores(reference.store, reference.store_fp8)
        return StoreAndAttend(self.layers, self.cache, slots, stores, attend)

    def _plan_of(self, layout: SharedLayout) -> reference.ReferencePlan:
        return self._make_plan(layout, self.cache.block_size, self.cache.device)


def _is_flashed(spec: LayerSpec) -> bool:
    sizes = spec.key_size, spec.value_size
    return flash.serves_layer(*sizes, spec.softcap, spec.window, spec.attention_chunk)
