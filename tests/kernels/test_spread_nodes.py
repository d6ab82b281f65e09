"""Copies of nodes for a prefill batch: each token of each node is where the new layout says."""

from __future__ import annotations

import numpy as np
import torch

from sharegen.kernels.prefill import PrefillPlan, prefill_attention
from sharegen.kernels.reference import ReferencePlan
from sharegen.kernels.reference import prefill_attention as in_torch
from sharegen.kernels.spread_nodes import SpreadNodes, copied
from sharegen.kernels.tiles import AttentionShape
from tests.kernels.test_latents import HEADS, KEY, SIZE, VALUE, make_batch
from tests.kernels.trees import DEVICE, assert_close


def test_chunks_below_latents_attend_to_copies() -> None:
    """Of nodes of both kinds, contiguous or not; five rows are one chunk each."""
    batch = make_batch(torch.float32)
    layout, places, tokens = copied(batch.layout, SIZE)
    assert tokens == (2 + 2 + 2 + 3) * SIZE
    assert layout.contiguous.all() and not layout.fp8.any()
    assert [len(place) for place in places] == [47, 47, 60, 60]
    full, full_to, latent, latent_to = (torch.from_numpy(place).to(DEVICE) for place in places)
    spread = SpreadNodes(full, full_to, latent, latent_to, SIZE, tokens)
    keys, values = spread.of(batch.k_cache, batch.v_cache, batch.latents)
    assert keys.shape == (9, SIZE, HEADS, KEY) and values.shape == (9, SIZE, HEADS, VALUE)
    assert keys.isfinite().all() and values.isfinite().all()
    k, v = torch.randn(2, 5, HEADS, KEY, device=DEVICE)
    v = v[..., :VALUE]
    starts = list(range(6))
    expected = in_torch(
        batch.q, k, v, batch.k_cache, batch.v_cache, ReferencePlan(batch.layout, SIZE, DEVICE),
        starts, batch.position, fp8=batch.latents, scale=0.2,
    )  # fmt: skip
    plan = PrefillPlan(AttentionShape(HEADS, HEADS, KEY, VALUE, SIZE, torch.float32), 8, DEVICE)
    plan.update(layout, starts)
    found = prefill_attention(batch.q, k, v, keys, values, plan, batch.position, scale=0.2)
    assert_close(found, expected)


def test_without_latents_nothing_is_spread_out() -> None:
    batch = make_batch(torch.float32)
    layout = batch.layout
    layout.fp8[:] = False
    _, places, _ = copied(layout, SIZE)
    assert [len(place) for place in places] == [107, 107, 0, 0]
    assert places[2].dtype == np.int64
