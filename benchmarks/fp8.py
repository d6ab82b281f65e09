"""What FP8 does to attention over long contexts, and to the layers of a large model.

    python -m benchmarks fp8-needles
    SHAREGEN_EMULATE_FP8=1 python -m benchmarks fp8-layers

No model is read: keys, values and weights are random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks.fp8_layers import layer_errors
from benchmarks.fp8_needles import find_needles
from sharegen.bench.shapes import config_of
from sharegen.engine.model.checkpoint.source import resolve_device


def bench_needles(
    lengths: Sequence[int], *, dtype: str, device: str, seed: int
) -> Iterator[dict[str, Any]]:
    """Decode attention over an FP8 KV cache of so many tokens, by length."""
    place = resolve_device(device)
    for length in lengths:
        for found in find_needles(length, place, getattr(torch, dtype), seed=seed):
            yield {"bench": "fp8 needles", "dtype": dtype, **asdict(found)}


def bench_layers(
    shape: str, *, layers: int | None, tokens: int, device: str, seed: int
) -> Iterator[dict[str, Any]]:
    """Compare FP8 weights and KV with full precision, layer by layer, on a sequence of so many
    tokens.
    """
    config = config_of(shape)
    count = layers or config.num_hidden_layers
    for found in layer_errors(config, count, tokens, resolve_device(device), seed):
        yield {"bench": "fp8 layers", "shape": shape, **asdict(found)}
