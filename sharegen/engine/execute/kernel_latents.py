"""Attention by the Triton kernels where samples' own tokens are latents."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sharegen.engine.execute.back_end import Put, Slots
from sharegen.engine.execute.kernel_attention import KernelAttention
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.execute.latent_step import LatentStep, latent_stores
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.interface import AttentionContext
from sharegen.kernels import own_latents, tiles
from sharegen.kernels.cost import LATENT_NODES
from sharegen.kernels.decode_latents import decode_latents
from sharegen.kernels.latents import Latents
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.prefill import prefill_attention
from sharegen.kernels.spread_nodes import SpreadNodes, copied
from sharegen.kernels.transfer import send


def unsupported(
    layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device
) -> str | None:
    """Return why the kernels cannot read the layers' latents; None when they can."""
    spec = layers[0] if layers else None
    if spec is None or spec.latent is None:
        return "there are none"
    rank, rest = spec.latent.rank, spec.key_size - spec.latent.of_latent
    limit = tiles.shared_memory_limit(device)
    return own_latents.unsupported(spec.num_heads, rank, rank + rest, dtype, limit)


class KernelLatents(KernelAttention):
    """KernelAttention over a cache of latents: all of its layers are alike.

    Which form a node has decides how it is read, whatever it costs otherwise.
    """

    def __init__(
        self, layers: Sequence[LayerSpec], cache: KVCache, max_rows: int, max_tokens: int
    ) -> None:
        super().__init__(layers, cache, max_rows, max_tokens, LATENT_NODES)
        [self._plan] = self._plans.values()
        [self._prefill_plan] = self._prefill_plans.values()

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: Slots,
    ) -> AttentionContext:
        plan = self._prefill_plan
        spread: SpreadNodes | None = None
        if layout.fp8.any():
            size = self.cache.block_size
            layout, places, tokens = copied(layout, size)
            full, full_to, latent, latent_to = send(self.cache.device, *places)
            spread = SpreadNodes(full, full_to, latent, latent_to, size, tokens)
        plan.update(layout, chunk_starts)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, latents: Latents, put: Put, *,
                   scale: float) -> torch.Tensor:  # fmt: skip
            put()
            if spread is not None:
                keys, values = spread.of(keys, values, latents)
            return prefill_attention(q, k, v, keys, values, plan, position, scale=scale)

        return LatentStep(
            self.layers, self.cache, slots, latent_stores(self.cache), attend, spreads=True
        )

    def decode(
        self,
        slots: Slots,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
        following: bool = False,
    ) -> AttentionContext:
        tables = block_tables, prefix_length, position

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, keys: torch.Tensor,
                   values: torch.Tensor, latents: Latents, put: Put, *,
                   scale: float) -> torch.Tensor:  # fmt: skip
            return decode_latents(
                q, keys, values, latents, self._plan, *tables, put=put, scale=scale
            )

        return LatentStep(
            self.layers, self.cache, slots, latent_stores(self.cache), attend, spreads=False
        )
