"""Needles in long contexts: decode attention over an FP8 KV cache against float64.

No model: keys and values are random, and at some depths lies a needle, a key that one query looks
for, among as many others as the context is long. What the engine's attention finds there is held
against float64 over the numbers as the model's dtype has them, and over the very numbers that the
cache holds: the first is what FP8 does to an answer, the second what the arithmetic alone does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharegen.engine.execute.attention import attention_for
from sharegen.engine.execute.back_end import Attention, Slots
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.reference import read_fp8, store, store_fp8

LAYER = LayerSpec(32, 8, 128, 128, 128**-0.5)
"""The attention of Llama-3-8B."""

LENGTHS = (16_384, 32_768, 65_536, 131_072)
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
PLACES = ("prompt", "own tokens")
"""Where a sample that reads it alone may have its context: a node of the tree, or its suffix."""

_SHARE = 5 / 6  # of a softmax that a needle gets, whatever the length
_APART = 0.5  # how far the query heads of a group are from what they look for
_BLOCK_SIZE = 16


@dataclass(frozen=True)
class Found:
    """What one query found, over all heads.

    length: of the context, in tokens; depth: of the needle, from 0 to 1; place: one of PLACES. kv:
    "auto" or "fp8". error: root mean square, worst: of the worst head, against float64 over the
    numbers in the model's dtype, as shares of the result; arithmetic: `error` against float64 over
    the numbers in the cache. needles: in how many heads the result is nearest to the needle's
    value, of all values in the context.
    """

    length: int
    depth: float
    place: str
    kv: str
    error: float
    worst: float
    arithmetic: float
    needles: int
    heads: int


@dataclass(frozen=True)
class _Haystack:
    """A context with needles. q: [depths, num_heads, size]; keys, values: [length, num_kv_heads,
    size]; at: [depths].
    """

    q: Tensor
    keys: Tensor
    values: Tensor
    at: list[int]


def find_needles(
    length: int,
    device: torch.device,
    dtype: torch.dtype,
    spec: LayerSpec = LAYER,
    attention: Callable[..., Attention] = attention_for,
    seed: int = 0,
) -> Iterator[Found]:
    """Look for a needle at each depth of a context of `length` tokens, wherever it may lie.

    attention: makes the back end of (layers, cache, rows, tokens), by default the engine's choice.
    """
    hay = _haystack(length, device, dtype, spec, seed)
    exact = _exact(hay, hay.keys, hay.values, spec)
    for kv in ("auto", "fp8"):
        cache, keys, values = _stored(hay, spec, fp8=kv == "fp8")
        same = exact if kv == "auto" else _exact(hay, keys, values, spec)
        for place in PLACES:
            out = _attend(attention([spec], cache, len(DEPTHS), 1), hay, place, kv == "fp8")
            for row, depth in enumerate(DEPTHS):
                error, arithmetic = out[row] - exact[row], out[row] - same[row]
                worst = (error.norm(dim=-1) / exact[row].norm(dim=-1)).max()
                yield Found(
                    length, depth, place, kv,
                    error=(error.norm() / exact[row].norm()).item(),
                    worst=worst.item(),
                    arithmetic=(arithmetic.norm() / same[row].norm()).item(),
                    needles=_needles(out[row], hay.values, hay.at[row]),
                    heads=spec.num_heads,
                )  # fmt: skip


def _haystack(
    length: int, device: torch.device, dtype: torch.dtype, spec: LayerSpec, seed: int
) -> _Haystack:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    keys, values = (random(length, spec.num_kv_heads, spec.key_size) for _ in range(2))
    wanted = random(len(DEPTHS), spec.num_kv_heads, spec.key_size)
    at = [round(depth * (length - 1)) for depth in DEPTHS]
    squares = wanted.square().sum(-1, keepdim=True)
    keys[at] = wanted * (_score(length) / spec.scaling) / squares
    group = spec.num_heads // spec.num_kv_heads
    q = wanted.repeat_interleave(group, dim=1)
    q = q + _APART * random(*q.shape)
    q, keys, values = (x.to(device, dtype) for x in (q, keys, values))
    return _Haystack(q, keys, values, at)


def _score(length: int) -> float:
    """Return the score of a needle: the others' are normal, of mean 0 and a variance of 1 + _APART
    squared.
    """
    others = math.log(length) + (1 + _APART**2) / 2
    return others + math.log(_SHARE / (1 - _SHARE))


def _stored(hay: _Haystack, spec: LayerSpec, fp8: bool) -> tuple[KVCache, Tensor, Tensor]:
    """The context in a cache of its own, and its keys and values as they are read there."""
    dtype, device, length = hay.q.dtype, hay.q.device, len(hay.keys)
    blocks_per_full = dtype.itemsize if fp8 else 1
    blocks = -(-length // (_BLOCK_SIZE * blocks_per_full)) * blocks_per_full
    cache = KVCache([spec], blocks, _BLOCK_SIZE, dtype, device, blocks_per_full)
    slots = torch.arange(length, device=device)
    if not fp8:
        store(hay.keys, hay.values, cache.keys[0], cache.values[0], slots)
        return cache, hay.keys, hay.values
    store_fp8(hay.keys, hay.values, cache.fp8[0], slots)
    return cache, *read_fp8(cache.fp8[0], slots)


def _attend(made: Attention, hay: _Haystack, place: str, fp8: bool) -> Tensor:
    """Compute the result in float64 of a step that stores nothing."""
    rows, length, device = len(hay.q), len(hay.keys), hay.q.device
    is_prompt = place == "prompt"
    made.update(_layout(rows, length if is_prompt else 0, fp8))
    blocks = torch.arange(-(-length // _BLOCK_SIZE), dtype=torch.int32, device=device)
    tables = torch.zeros_like(blocks[:1]) if is_prompt else blocks
    above = length if is_prompt else 0
    prefix = torch.full((rows,), above, dtype=torch.int32, device=device)
    position = torch.full_like(prefix, length - 1)
    context = made.decode(Slots(None), tables.repeat(rows, 1), prefix, position)
    nothing = hay.keys[:0]
    return context.attend(0, hay.q, nothing, nothing).double()


def _layout(rows: int, length: int, fp8: bool) -> SharedLayout:
    """Make one node of that many tokens above all rows; none for no tokens."""
    nodes = min(length, 1)

    def each(number: int) -> Any:
        return np.full(nodes, number, np.int32)

    blocks = np.arange(-(-length // _BLOCK_SIZE), dtype=np.int32)
    return SharedLayout(
        order=np.arange(rows, dtype=np.int32), length=each(length), position=each(0),
        level=each(0), row_start=each(0), row_end=each(rows),
        block_start=np.array([0, len(blocks)][: nodes + 1], np.int32), blocks=blocks,
        contiguous=np.ones(nodes, bool), fp8=np.full(nodes, fp8),
    )  # fmt: skip


def _exact(hay: _Haystack, keys: Tensor, values: Tensor, spec: LayerSpec) -> Tensor:
    """Attend in float64, [depths, num_heads, size], head by head: a context in float64 is long."""
    heads = []
    for head, q in enumerate(hay.q.double().chunk(spec.num_kv_heads, dim=1)):
        scores = q @ keys[:, head].double().t() * spec.scaling
        heads.append(scores.softmax(-1) @ values[:, head].double())
    return torch.cat(heads, dim=1)


def _needles(out: Tensor, values: Tensor, at: int) -> int:
    """Count in how many heads of out [num_heads, size] the value at that place is the nearest."""
    groups: Sequence[Tensor] = out.float().chunk(values.shape[1])
    nearest = [
        torch.cdist(group, values[:, head].float()).argmin(-1) for head, group in enumerate(groups)
    ]
    return int((torch.cat(nearest) == at).sum())
