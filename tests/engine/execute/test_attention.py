"""The seam between a model's forward and its attention: contexts, layers, and what they store."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sharegen.engine.execute.attention import ReferenceAttention, attention_for
from sharegen.engine.execute.back_end import Slots
from sharegen.engine.execute.kv_cache import KVCache
from sharegen.engine.model.attention.layer_spec import LayerSpec
from sharegen.engine.model.interface import (
    active,
    attend,
    attend_in_order,
    attend_rows_in_order,
    current,
    each_layer_once,
)
from sharegen.engine.model.load import load_model
from sharegen.errors import UsageError
from sharegen.kernels.layout import SharedLayout
from tests.engine.jobs import loaded
from tests.engine.tiny_models import make_tiny

BLOCK_SIZE = 4
ROOT = 10  # tokens of a prompt that two sequences share


class Named:
    """A context that says who it is and which layer it was asked for."""

    def __init__(self, name: float) -> None:
        self.name = name
        self.layers: list[int] = []

    def attend(
        self,
        layer_idx: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.layers.append(layer_idx)
        return torch.full((*q.shape[:2], v.shape[2]), self.name)


def layer(window: int | None = None, value_size: int = 6) -> LayerSpec:
    return LayerSpec(
        num_heads=4, num_kv_heads=2, key_size=8, value_size=value_size, scaling=0.3,
        window=window, attention_chunk=None, softcap=None, has_sinks=False,
    )  # fmt: skip


@pytest.fixture
def cache() -> KVCache:
    layers = [layer(), layer(window=3)]
    return KVCache(layers, 12, BLOCK_SIZE, torch.float32, torch.device("cpu"))


@pytest.fixture
def reference(cache: KVCache) -> Iterator[ReferenceAttention]:
    chosen = attention_for([layer(), layer(window=3)], cache, 16, 64)
    assert isinstance(chosen, ReferenceAttention) and chosen.fallback is None
    yield chosen


def layout(length: int, blocks: list[int], rows: int) -> SharedLayout:
    """One node over all rows; none where its length is 0."""
    some = np.array([length] if length else [], np.int32)
    return SharedLayout(
        order=np.arange(rows, dtype=np.int32),
        length=some,
        position=some * 0,
        level=some * 0,
        row_start=some * 0,
        row_end=some * 0 + rows,
        block_start=np.array([0, len(blocks)] if length else [0], np.int32),
        blocks=np.array(blocks, np.int32),
        contiguous=some == -1,
        fp8=some == -1,
    )


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None, scale: float
) -> torch.Tensor:
    """The last row of a text attends to all of it; q: [Hq, D], k, v: [T, Hkv, *]."""
    seen = k[-window:] if window else k
    keys = seen.repeat_interleave(2, dim=1)
    scores = torch.einsum("hd,thd->ht", q, keys) * scale
    values = v[-len(seen) :].repeat_interleave(2, dim=1)
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)


def test_contexts_nest_and_end_with_their_block() -> None:
    with pytest.raises(UsageError, match="in use by an LLM"):
        current()
    outer, inner = Named(1), Named(2)
    with active(outer):
        with active(inner):
            assert current() is inner
        assert current() is outer
        with pytest.raises(KeyError), active(inner):
            raise KeyError
        assert current() is outer
    with pytest.raises(UsageError, match="in use by an LLM"):
        current()


def test_a_compiled_model_counts_its_layers_by_itself() -> None:
    q, kv = torch.zeros(3, 4, 8), torch.zeros(3, 2, 8)
    context = Named(7)
    for _ in range(2):  # every forward begins at the first layer
        with active(context):
            for _ in range(3):
                assert (attend_in_order(q, kv, kv, None) == 7).all()
    assert context.layers == [0, 1, 2] * 2


def test_attention_in_fp8_is_that_of_any_context() -> None:
    q, kv = torch.zeros(3, 4, 8), torch.zeros(3, 2, 8)
    context = Named(7)
    with active(context):
        attend_in_order(q, kv, kv, None)
        numbers, scales = attend_rows_in_order(q, kv, kv, None)
    assert numbers.shape == (3, 32) and scales.shape == (3, 1)
    assert (numbers.float() * scales).allclose(torch.tensor(7.0))
    assert context.layers == [0, 1]


def test_a_forward_calls_every_layer_once() -> None:
    q, kv = torch.zeros(3, 4, 8), torch.zeros(3, 2, 8)
    for calls in (1, 3):
        told = pytest.raises(AssertionError, match="attention was called for")
        with told, active(Named(7)), each_layer_once(2):
            for _ in range(calls):
                attend_in_order(q, kv, kv, None)
    with active(Named(7)), each_layer_once(2):
        attend(1, q, kv, kv, None)
        attend(0, q, kv, kv, None)


def test_a_model_that_leaves_a_layer_out_is_noticed() -> None:
    """One that chooses its layers as it goes, say."""
    model = load_model(make_tiny("llama"))
    model.model.model.layers[0].forward = lambda hidden, *_, **__: hidden
    with pytest.raises(AssertionError, match=r"attention was called for \[1\]"):
        model.trial_forward(4, rows=2)
    model.release()


def test_a_model_s_forward_needs_a_context() -> None:
    ids = torch.tensor([5, 6, 7])
    with pytest.raises(UsageError, match="in use by an LLM"):
        loaded("llama").forward(ids, torch.arange(3), torch.tensor([2]))


@pytest.mark.parametrize("layer_idx", [0, 1])
def test_prefill_then_decode_is_attention_over_the_whole_text(
    layer_idx: int, cache: KVCache, reference: ReferenceAttention
) -> None:
    """Two sequences go on from one prompt, whose blocks lie in no order; layer 1 has a window."""
    spec = reference.layers[layer_idx]
    generator = torch.Generator().manual_seed(layer_idx)

    def random(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        shapes = ((4, spec.key_size), (2, spec.key_size), (2, spec.value_size))
        q, k, v = (torch.randn(tokens, *shape, generator=generator) for shape in shapes)
        return q, k, v

    blocks = [7, 2, 5]
    places = [blocks[t // BLOCK_SIZE] * BLOCK_SIZE + t % BLOCK_SIZE for t in range(ROOT)]
    q, k, v = random(ROOT)
    position = torch.arange(ROOT, dtype=torch.int32)
    context = reference.prefill(
        layout(0, [], ROOT), [0, ROOT], position, Slots(torch.tensor(places))
    )
    out = context.attend(layer_idx, q, k, v)
    for t in range(ROOT):
        expected = dense(q[t], k[: t + 1], v[: t + 1], spec.window, spec.scaling)
        torch.testing.assert_close(out[t], expected)

    reference.update(layout(ROOT, blocks, 2))
    own = [(k, v), (k, v)]
    tables = torch.tensor([[9, 10], [0, 11], [12, 12]], dtype=torch.int32)  # the last row is dead
    prefix = torch.tensor([ROOT, ROOT, 0], dtype=torch.int32)
    for step in range(6):
        q, k, v = random(3)
        own = [
            (torch.cat([keys, k[row : row + 1]]), torch.cat([values, v[row : row + 1]]))
            for row, (keys, values) in enumerate(own)
        ]
        slots = tables[:, step // BLOCK_SIZE].long() * BLOCK_SIZE + step % BLOCK_SIZE
        position = torch.tensor([ROOT + step, ROOT + step, -1], dtype=torch.int32)
        context = reference.decode(Slots(slots), tables, prefix, position)
        out = context.attend(layer_idx, q, k, v)
        for row, (keys, values) in enumerate(own):
            expected = dense(q[row], keys, values, spec.window, spec.scaling)
            torch.testing.assert_close(out[row], expected)
        assert (out[2] == 0).all()


def test_layers_keep_to_their_own_caches(cache: KVCache, reference: ReferenceAttention) -> None:
    q, k, v = torch.randn(1, 4, 8), torch.randn(1, 2, 8), torch.randn(1, 2, 6)
    position = torch.zeros(1, dtype=torch.int32)
    context = reference.prefill(layout(0, [], 1), [0, 1], position, Slots(torch.tensor([6])))
    context.attend(1, q, k, v)
    assert torch.equal(cache.keys[1][1, 2], k[0]) and torch.equal(cache.values[1][1, 2], v[0])
    assert cache.keys[0].count_nonzero() == cache.values[0].count_nonzero() == 0
    assert cache.keys[1].count_nonzero() == 2 * 8
