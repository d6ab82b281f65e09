"""Attention over tiles at absolute positions: right, and with bits that no tree changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sharegen.kernels import absolute, absolute_plan
from tests.kernels.test_deterministic import some_of, with_nodes
from tests.kernels.trees import (
    DEVICE,
    DTYPES,
    Batch,
    assert_close,
    each_dtype,
    make_shape,
    naive_decode,
    random_batch,
)

NODES = [(150, 0, 6), (75, 0, 3), (20, 3, 5), (128, 6, 8)]
"""Beginnings that end within a tile and at its end, and what goes on in the middle of one."""
SUFFIXES = [1, 30, 64, 7, 100, 3, 1, 40, 90]

of_16_bits = pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
each_head = pytest.mark.parametrize("size", [64, 128])


def decode(batch: Batch, **how: Any) -> torch.Tensor:
    shape = batch.shape
    plan = absolute_plan.DecodingPlan(shape.group, shape.block_size, len(batch.q), DEVICE)
    plan.update(batch.layout)
    return absolute.absolute_attention(
        batch.q, batch.k_cache, batch.v_cache, plan.plan, batch.position, batch.block_tables,
        batch.prefix_length, scale=0.125, **how,
    )  # fmt: skip


def a_batch(dtype: torch.dtype, size: int = 64, scattered: tuple[int, ...] = (0,)) -> Batch:
    shape = make_shape(8, 2, dtype, key_size=size, value_size=size)
    return random_batch(shape, NODES, SUFFIXES, padding=1, scattered=scattered)


@pytest.mark.slow
@each_dtype
@each_head
@pytest.mark.parametrize("how", [{}, {"softcap": 2.0}], ids=str)
@pytest.mark.turn(10)
def test_results(size: int, how: dict[str, Any], dtype: torch.dtype) -> None:
    for scattered in ((), (0, 3)):
        batch = a_batch(dtype, size, scattered)
        assert_close(decode(batch, **how), naive_decode(batch, scale=0.125, **how))


@each_head
@of_16_bits
@pytest.mark.turn(10)
def test_alone_and_beside_others(size: int, dtype: torch.dtype) -> None:
    batch = a_batch(dtype, size)
    whole = decode(batch)
    for place in range(len(SUFFIXES)):
        alone, (row,) = some_of(batch, [place])
        assert torch.equal(decode(alone)[0], whole[row])


@of_16_bits
@pytest.mark.turn(10)
def test_a_prompts_token_and_a_drawn_one(dtype: torch.dtype) -> None:
    """A row's own tokens as the chunk of a prompt: its last one has the bits of the drawn one."""
    batch = a_batch(dtype, 128)
    drawn = decode(batch)
    for place, count in enumerate(SUFFIXES):
        alone, (row,) = some_of(batch, [place])
        nodes = np.arange(alone.layout.num_nodes)
        layout = with_nodes(
            alone.layout, nodes.tolist(), order=np.arange(count, dtype=np.int32),
            row_end=np.full(len(nodes), count, np.int32),
        )  # fmt: skip
        slots = torch.from_numpy(batch.slots[row][-count:]).to(DEVICE)
        group, size = batch.shape.group, batch.shape.block_size
        plan = absolute_plan.prefill_plan(layout, [0, count], slots, group, size)
        end = int(batch.position[row]) + 1
        position = torch.arange(end - count, end, dtype=torch.int32, device=DEVICE)
        q = alone.q.expand(count, -1, -1).contiguous()
        out = absolute.absolute_attention(
            q, batch.k_cache, batch.v_cache, plan, position, scale=0.125
        )
        assert torch.equal(out[-1], drawn[row])
