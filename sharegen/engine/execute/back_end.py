"""What every back end of attention offers, and the context of a step that they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.fp8 import products as fp8_products
from sharegen.engine.model.interface import Angles, AttentionContext, rotate
from sharegen.kernels.layout import SharedLayout


@dataclass(frozen=True)
class Slots:
    """Where the KV of a step's tokens goes.

    Args:
        full: [T] int64, slots of full-precision blocks, -1 for a token that goes to an FP8 block;
            None where none goes here.
        fp8: [T] int64, slots of FP8 blocks, or of those of latents, likewise.
    """

    full: torch.Tensor | None
    fp8: torch.Tensor | None = None


Put = Callable[[], None]
"""Puts the keys and values of a step's tokens into their slots."""


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
        """Take over the shared nodes of the decoding steps to come."""
        ...

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: Slots,
    ) -> AttentionContext:
        """Make the context of a prefill step, of packed chunks of prompts.

        Args:
            layout: the nodes above the chunks; its rows are the batch's tokens.
            chunk_starts: where each chunk begins in the batch, and the batch's end.
            position: [T] int32, of each token in its prompt.
            slots: where the tokens' keys and values go.
        """
        ...

    def decode(
        self,
        slots: Slots,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
        following: bool = False,
    ) -> AttentionContext:
        """Make the context of a decoding step, of one token a row.

        Args:
            slots: where the tokens' keys and values go.
            block_tables: [rows, max_blocks] int32, the blocks of each row's own tokens.
            prefix_length: [rows] int32, tokens above the row's own; 0 for a dead row.
            position: [rows] int32, of the token that goes in; -1 for a dead row.
            following: whether each FOLLOWING rows are tokens of one sample, one after the other,
                and then dead ones; whoever can reads their keys together.
        """
        ...


@dataclass(frozen=True)
class Stores:
    """The functions that put keys and values into their slots.

    Args:
        full: (k, v, keys, values, slots), for full-precision blocks.
        fp8: (k, v, fp8, slots), for FP8 blocks.
        rotated: (q, k, v, cos, sin, cache, slots) -> q, which rotates q and k before; cache is
            (keys, values) or FP8 blocks. None where attention reads the step's own k, too.
    """

    full: Callable[..., None]
    fp8: Callable[..., None]
    rotated: Callable[..., torch.Tensor] | None = None


@dataclass(frozen=True)
class StoreAndAttend:
    """The context of a step: keys and values go to their slots before a row reads them.

    Args:
        layers: the attention of each layer that has one.
        cache: the KV cache that is read and written.
        slots: where the step's keys and values go.
        stores: the functions that put them there.
        attention: (q, k, v, keys, values, put, fp8=, scale=, window=, attention_chunk=, softcap=,
            sinks=) -> [T, num_heads, value_size]. It calls put() once, before it reads the step's
            own tokens.
        gives_rows: whether `attention` takes rows=, too, and writes its result there in FP8.
    """

    layers: Sequence[LayerSpec]
    cache: KVCache
    slots: Slots
    stores: Stores
    attention: Callable[..., torch.Tensor]
    gives_rows: bool = False

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        angles: Angles | None = None,
    ) -> torch.Tensor:
        return self._attend(layer_idx, q, k, v, angles, sinks=sinks)

    def attend_rows(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        angles: Angles | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.gives_rows:
            return fp8_products.rows_of(self.attend(layer_idx, q, k, v, sinks, angles).flatten(1))
        from sharegen.kernels.fp8_rows import FP8Rows  # which needs Triton

        rows = FP8Rows.empty(len(q), q.shape[1] * v.shape[2], q.device, fp8_products.LEAST)
        self._attend(layer_idx, q, k, v, angles, sinks=sinks, rows=rows)
        return rows.numbers, rows.scales

    def _attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        angles: Angles | None,
        **how: Any,
    ) -> torch.Tensor:
        spec = self.layers[layer_idx]
        keys, values = self.cache.keys[layer_idx], self.cache.values[layer_idx]
        fp8 = self.cache.fp8[layer_idx] if self.cache.fp8 else None

        def put() -> None:
            if self.slots.full is not None:
                self.stores.full(k, v, keys, values, self.slots.full)
            if self.slots.fp8 is not None:
                self.stores.fp8(k, v, fp8, self.slots.fp8)

        if angles is not None and self.stores.rotated is not None and k.shape == v.shape:
            place = (keys, values) if self.slots.full is not None else fp8
            slots = self.slots.full if self.slots.full is not None else self.slots.fp8
            q = self.stores.rotated(q, k, v, *angles, place, slots)
            put = _nothing
        elif angles is not None:
            q, k = rotate(q, k, angles)
        return self.attention(
            q, k, v, keys, values, put, fp8=fp8, scale=spec.scaling, window=spec.window,
            attention_chunk=spec.attention_chunk,
            softcap=spec.softcap, **how,
        )  # fmt: skip


def _nothing() -> None:
    """Do nothing: keys and values were put into their slots while they were rotated."""
