"""The ceiling of a job: copies in the place of attention, and of what changes a hybrid's states.

This is Hydragen's no-attention ceiling (section 4.1): projections, those of mixers too, KV store,
sampling and scheduling stay.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from sharegen.engine.engine import Engine
from sharegen.engine.execute.back_end import Slots, StoreAndAttend, Stores
from sharegen.engine.execute.latent_step import LatentStep, latent_stores
from sharegen.engine.execute.states import StatePool
from sharegen.engine.execute.step_slots import StepSlots
from sharegen.engine.model.interface import AttentionContext
from sharegen.engine.model.states.in_place import changing, in_place, no_changes
from sharegen.engine.model.states.mixers import States, keys_in_place
from sharegen.kernels import reference
from sharegen.kernels.layout import SharedLayout


def leave_attention_out(engine: Engine) -> None:
    """Leave attention out, and what changes states, which stay as they are: from here on the engine
    copies; its graphs are captured anew. Of one rank.
    """
    engine.runner.attention = Copies(engine)
    if engine.runner.states is not None:
        engine.runner.states.pool = Unmixed(engine.runner.states.pool)
    if engine.runner.graphs is not None:
        engine.runner.graphs.clear()


@contextmanager
def attention_left_out(engine: Engine) -> Iterator[None]:
    """Leave attention out inside of the `with` block alone."""
    runner = engine.runner
    attention, pool = runner.attention, None if runner.states is None else runner.states.pool
    leave_attention_out(engine)
    try:
        yield
    finally:
        runner.attention = attention
        if runner.states is not None and pool is not None:
            runner.states.pool = pool
        if runner.graphs is not None:
            runner.graphs.clear()


class Unmixed(StatePool):
    """Leaves mixers out, but for the projections of those whose states all change in place."""

    def __init__(self, pool: StatePool) -> None:
        vars(self).update(vars(pool))
        self._around = [keys_in_place(mixer) == mixer.keys for mixer in pool.mixers]

    def mix(self, index: int, hidden: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
        return hidden.clone()

    def step(self, index: int, hidden: torch.Tensor, slots: StepSlots) -> torch.Tensor:
        if not self._around[index]:
            return hidden.clone()
        mixer = self.mixers[index]
        with changing(no_changes(mixer.keys)):
            is_compiled = type(mixer.module) in self._compiled
            return mixer.step(hidden, States({}, in_place(mixer.keys)), is_compiled)

    def end_step(self, slots: StepSlots) -> None: ...


class Copies:
    """Attention that stores the keys and values, and returns the row's own values."""

    fallback = None
    generation = 0
    variant: Hashable = "copies"
    shared_levels: tuple[int, ...] = ()

    def __init__(self, engine: Engine) -> None:
        self.layers, self.cache = engine.model.layers, engine.runner.cache
        if self.cache.device.type == "cuda":
            from sharegen.kernels.rotate import rotate_and_store
            from sharegen.kernels.store import store, store_fp8

            self._stores = Stores(store, store_fp8, rotate_and_store)
        else:
            self._stores = Stores(reference.store, reference.store_fp8)

    def update(self, layout: SharedLayout) -> None: ...

    def prefill(
        self,
        layout: SharedLayout,
        chunk_starts: list[int],
        position: torch.Tensor,
        slots: Slots,
    ) -> AttentionContext:
        return self._context(slots, replace(self._stores, rotated=None))

    def decode(
        self,
        slots: Slots,
        block_tables: torch.Tensor,
        prefix_length: torch.Tensor,
        position: torch.Tensor,
        following: bool = False,
    ) -> AttentionContext:
        return self._context(slots, self._stores)

    def _context(self, slots: Slots, stores: Stores) -> AttentionContext:
        def copy(q: Any, k: Any, v: torch.Tensor, *caches: Any, **how: Any) -> torch.Tensor:
            caches[-1]()  # puts them where they belong
            return v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)

        if self.cache.latents:  # to spread them out is as much work as to absorb and to raise
            return LatentStep(self.layers, self.cache, slots, latent_stores(self.cache), copy, True)
        return StoreAndAttend(self.layers, self.cache, slots, stores, copy)
