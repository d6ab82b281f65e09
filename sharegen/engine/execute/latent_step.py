"""The context of a step over latents: what samples alone read is stored and read in that form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from sharegen.engine.execute.back_end import Slots
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.kernels import reference
from sharegen.kernels.latents import Latents
from sharegen.kernels.latents import store_latents as store_in_torch


@dataclass(frozen=True)
class LatentStores:
    """The functions that put a step's tokens into their slots.

    full: (k, v, keys, values, slots), spread out; latents: (latent, rest, blocks, slots).
    """

    full: Callable[..., None]
    latents: Callable[..., None]


def latent_stores(cache: KVCache) -> LatentStores:
    """Kernels on a GPU, which reads with kernels, too; torch's operations on a CPU."""
    if cache.device.type == "cuda":
        from sharegen.kernels.own_latents import store_latents
        from sharegen.kernels.store import store

        return LatentStores(store, store_latents)
    return LatentStores(reference.store, store_in_torch)


@dataclass
class LatentStep:
    """What `back_end.StoreAndAttend` is to other models.

    Args:
        layers: the attention of each layer that has one.
        cache: the KV cache that is read and written, of blocks of latents.
        slots: where the step's tokens go.
        stores: the functions that put them there.
        attention: (q, k, v, keys, values, latents, put, scale=) -> [T, num_heads, value_size]. It
            calls put() once, before it reads the step's own tokens.
        spreads: whether it reads k and v; else they need not be made of the latents.
    """

    layers: Sequence[LayerSpec]
    cache: KVCache
    slots: Slots
    stores: LatentStores
    attention: Callable[..., torch.Tensor]
    spreads: bool
    _seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def spread(self, layer_idx: int, latent: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self._seen[layer_idx] = latent.clone(), weight
        if self.spreads:
            return torch.nn.functional.linear(latent, weight)
        return latent.new_empty(len(latent), len(weight))

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        spec = self.layers[layer_idx]
        assert spec.latent is not None and sinks is None
        latent, weight = self._seen.pop(layer_idx)
        keys, values = self.cache.keys[layer_idx], self.cache.values[layer_idx]
        of_latent = spec.latent.of_latent
        blocks = self.cache.latents[layer_idx]
        latents = Latents(blocks, weight, spec.num_heads, spec.key_size, of_latent)

        def put() -> None:
            if self.slots.full is not None:
                self.stores.full(k, v, keys, values, self.slots.full)
            if self.slots.fp8 is not None:
                self.stores.latents(latent, k[:, 0, of_latent:], blocks, self.slots.fp8)

        return self.attention(q, k, v, keys, values, latents, put, scale=spec.scaling)
