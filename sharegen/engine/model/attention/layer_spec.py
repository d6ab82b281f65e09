"""The attention of one layer, as the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass

from sharegen.engine.model.attention.latents import LatentSpec


@dataclass(frozen=True)
class LayerSpec:
    """The attention of one layer, as the engine sees it.

    scaling: what q . k is multiplied with. window: a query at p sees keys above p - window.
    attention_chunk: a query at p sees keys from p // attention_chunk * attention_chunk on.
    softcap: scores become softcap * tanh(score / softcap). has_sinks: the call carries one sink
    logit a head. latent: what keys and values are made of, where that is one latent for all heads.
    """

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    scaling: float
    window: int | None = None
    softcap: float | None = None
    has_sinks: bool = False
    attention_chunk: int | None = None
    latent: LatentSpec | None = None

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Query heads, heads of keys and values, and the numbers that a key and a value have."""
        return self.num_heads, self.num_kv_heads, self.key_size, self.value_size
