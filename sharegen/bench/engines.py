"""Engines of one shape with random weights, one after the other: each has all of the memory."""

from __future__ import annotations

import gc
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from sharegen.bench.shapes import load_random
from sharegen.engine.cache.prefix_tree import PrefixTree
from sharegen.engine.config import EngineConfig
from sharegen.engine.engine import Engine
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.opening import open_engine
from sharegen.kernels.cost import CostModel


class Engines:
    """Makes them on one model, or with ranks on parts of one.

    shape: a known shape or a model folder (its config). quantization, kv_cache_dtype: as for
    `bench decode`. ranks: GPUs that the model is cut among, from `device` on. kv_cache_memory:
    bytes, by default what an engine finds for itself.
    """

    def __init__(
        self,
        shape: str,
        device: str,
        dtype: torch.dtype,
        *,
        quantization: str | None = None,
        kv_cache_dtype: str = "auto",
        compile_model: bool = True,
        ranks: int = 1,
        kv_cache_memory: int | None = None,
    ) -> None:
        self.ranks = ranks
        self._compile, self._kv_cache_dtype = compile_model, kv_cache_dtype
        self._kv_cache_memory = kv_cache_memory
        give_memory_back()
        load = partial(load_random, shape, dtype, quantization)
        self._setting = Setting(shape, None, EngineConfig(), device=device, ranks=ranks, load=load)  # type: ignore[arg-type]
        if ranks == 1:
            loaded = load(device=resolve_device(device))
            self._setting = replace(self._setting, model=loaded, load=None)

    def make(
        self, rows: int, levels: int | None, costs: CostModel | None = None, **options: Any
    ) -> Engine:
        """Make an engine for so many rows; the last one must be gone, or closed where there are
        ranks.

        levels: of the tree that are shared, among requests that come together; None for what the
        engine finds by itself, among those that come later, too. costs: as for Engine. options:
        more of an EngineConfig, or in place of what the engines have in common.
        """
        give_memory_back()
        common: dict[str, Any] = {
            "max_sequences": rows,
            "compile": self._compile,
            "kv_cache_dtype": self._kv_cache_dtype,
            "kv_cache_memory": self._kv_cache_memory,
        }
        config = EngineConfig(**(common | options))
        tree = None if levels is None else tree_of(config.block_size, levels)
        return open_engine(replace(self._setting, config=config), tree=tree, costs=costs)


def tree_of(block_size: int, levels: int) -> PrefixTree:
    """An empty tree whose first so many levels may be shared."""
    return PrefixTree(block_size, shares=lambda level: level < levels)


def give_memory_back() -> None:
    """Give back the memory that nothing refers to any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
