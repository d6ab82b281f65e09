"""The suffix phase split over a row's tokens gives what it gives in one piece."""

from __future__ import annotations

import pytest
import torch

from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import CostModel
from sharegen.kernels.shared import shared_attention
from sharegen.kernels.suffix import suffix_attention
from tests.kernels.trees import (
    DEVICE,
    assert_close,
    each_dtype,
    make_shape,
    naive_decode,
    random_batch,
)


@each_dtype
@pytest.mark.parametrize("splits", [1, 3, 8])
@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("unshared", [False, True])
@pytest.mark.turn(10)
def test_splits(splits: int, window: int | None, unshared: bool, dtype: torch.dtype) -> None:
    shape = make_shape(4, 2, dtype)
    batch = random_batch(shape, [(50, 0, 3), (17, 1, 3)], [1, 200, 70, 5], padding=1)
    sinks = torch.linspace(-2, 2, 4, device=DEVICE).to(dtype)
    costs = CostModel(sharing=float("inf")) if unshared else None
    plan = AttentionPlan(shape, len(batch.q), DEVICE, costs=costs)
    plan.update(batch.layout)
    assert plan.sharing != unshared
    options = {"scale": 0.125, "window": window}
    shared_attention(batch.q, batch.k_cache, batch.v_cache, plan, batch.position, **options)
    out = suffix_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
        batch.position, sinks=sinks, num_splits=splits, **options,
    )  # fmt: skip
    assert_close(out, naive_decode(batch, sinks=sinks, **options))


@pytest.mark.parametrize("window", [None, 1050])
def test_more_blocks_than_are_looked_up_at_a_time(window: int | None) -> None:
    """Also where the first one begins in the middle of a block."""
    shape = make_shape(1, 1, torch.float16, block_size=32)
    batch = random_batch(shape, [], [1100])
    plan = AttentionPlan(shape, 1, DEVICE)
    plan.update(batch.layout)
    out = suffix_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
        batch.position, scale=0.125, window=window, num_splits=1,
    )  # fmt: skip
    assert_close(out, naive_decode(batch, scale=0.125, window=window))


@pytest.mark.parametrize("window", [None, 1150])
@pytest.mark.parametrize("scattered", [(), (0,)])
@pytest.mark.turn(4)
def test_an_unshared_node_of_more_blocks_than_are_looked_up_at_a_time(
    scattered: tuple[int, ...], window: int | None
) -> None:
    shape = make_shape(1, 1, torch.float16, block_size=32)
    batch = random_batch(shape, [(1101, 0, 2)], [1, 100], scattered=scattered)
    plan = AttentionPlan(shape, 2, DEVICE, costs=CostModel(sharing=float("inf")))
    plan.update(batch.layout)
    assert plan.has_unshared and not plan.sharing
    out = suffix_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
        batch.position, scale=0.125, window=window, num_splits=1,
    )  # fmt: skip
    assert_close(out, naive_decode(batch, scale=0.125, window=window))


def test_one_long_row_is_split() -> None:
    shape = make_shape(1, 1, torch.float32)
    batch = random_batch(shape, [], [300])
    plan = AttentionPlan(shape, 1, DEVICE)
    plan.update(batch.layout)
    out = suffix_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
        batch.position, scale=0.125,
    )  # fmt: skip
    assert_close(out, naive_decode(batch, scale=0.125))
