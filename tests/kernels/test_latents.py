"""Attention over latents: absorbed, stored and read, beside nodes that are spread out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sharegen.kernels import reference, reference_latents
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import LATENT_NODES
from sharegen.kernels.decode_latents import decode_latents
from sharegen.kernels.latents import Latents
from sharegen.kernels.latents import store_latents as store_in_torch
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.own_latents import LatentTile, own_latents, store_latents, unsupported
from sharegen.kernels.tiles import AttentionShape
from tests.kernels.trees import DEVICE, assert_close, each_dtype

SIZE, PER_FULL = 16, 6  # tokens of a block, blocks of latents in a full one
HEADS, KEY, VALUE, RANK, OF_LATENT = 6, 24, 20, 40, 16
WIDTH = 48


@dataclass
class Batch:
    """Five rows: two nodes of keys and values, one above the other, and below them two of latents,
    of which one is scattered.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    latents: Latents
    layout: SharedLayout
    block_tables: torch.Tensor
    prefix_length: torch.Tensor
    position: torch.Tensor

    @property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.block_tables, self.prefix_length, self.position


def make_batch(dtype: torch.dtype) -> Batch:
    random = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(DEVICE, dtype)

    memory = numbers(12, SIZE, PER_FULL * WIDTH)
    memory[11] = torch.nan  # nobody's, and what is beyond a row's last token
    keys, values, _ = memory.split([HEADS * KEY, HEADS * VALUE, PER_FULL * WIDTH - HEADS * 44], -1)
    blocks = memory.view(-1, SIZE, WIDTH)
    latents = Latents(blocks, numbers(HEADS * 36, RANK) * 0.3, HEADS, KEY, OF_LATENT)
    layout = SharedLayout(
        order=np.array([3, 0, 1, 4, 2], dtype=np.int32),
        length=np.array([30, 17, 20, 40], dtype=np.int32),
        position=np.array([0, 30, 47, 30], dtype=np.int32),
        level=np.array([0, 1, 2, 1], dtype=np.int32),
        row_start=np.array([0, 0, 1, 3], dtype=np.int32),
        row_end=np.array([4, 3, 3, 4], dtype=np.int32),
        block_start=np.array([0, 1, 2, 3, 6], dtype=np.int32),
        blocks=np.array([1, 4, 38, 43, 40, 42], dtype=np.int32),
        contiguous=np.array([True, True, True, False]),
        fp8=np.array([False, False, True, True]),
    )
    own = [5, 16, 33, 1, 50]
    prefix = [67, 67, 0, 47, 70]
    tables = torch.full((5, 4), 11 * PER_FULL, dtype=torch.int32)
    free = iter(range(44, 54))
    for row, count in enumerate(own):
        for column in range(-(-count // SIZE)):
            block = next(free)
            tables[row, column] = block
            blocks[block, count - column * SIZE :] = torch.nan
    ends = [p + n - 1 for p, n in zip(prefix, own, strict=True)]
    return Batch(
        numbers(5, HEADS, KEY), keys.unflatten(2, (HEADS, -1)), values.unflatten(2, (HEADS, -1)),
        latents, layout, tables.to(DEVICE),
        torch.tensor(prefix, dtype=torch.int32, device=DEVICE),
        torch.tensor(ends, dtype=torch.int32, device=DEVICE),
    )  # fmt: skip


def expected(batch: Batch) -> torch.Tensor:
    plan = reference.ReferencePlan(batch.layout, SIZE, DEVICE)
    suffix = reference.SuffixPlan(plan, SIZE, *batch.rows)
    return reference_latents.decode_latents(
        batch.q, batch.k_cache, batch.v_cache, batch.latents, plan, suffix, scale=0.2
    )


def plan_of(batch: Batch, dtype: torch.dtype) -> AttentionPlan:
    shape = AttentionShape(HEADS, HEADS, KEY, VALUE, SIZE, dtype)
    plan = AttentionPlan(shape, 8, DEVICE, costs=LATENT_NODES)
    plan.update(batch.layout)
    assert plan.sharing and plan.has_unshared
    return plan


def test_the_absorbed_form_is_the_spread_out_one() -> None:
    """In float64: it is the same sum in another order."""
    batch = make_batch(torch.float32)
    latents = batch.latents
    slots = torch.arange(38 * SIZE, 39 * SIZE, device=DEVICE)
    keys, values = (x.double() for x in latents.read(slots))
    q = batch.q.double()
    weights = torch.einsum("rhd,nhd->rhn", q, keys).softmax(-1)
    tokens = latents.blocks.flatten(0, 1)[slots].double()
    absorbed = torch.einsum("rhw,nw->rhn", latents.absorb(q), tokens[:, : latents.size]).softmax(-1)
    assert torch.allclose(absorbed, weights, atol=1e-5)
    raised = latents.raised(torch.einsum("rhn,nc->rhc", absorbed, tokens[:, :RANK]))
    assert torch.allclose(raised, torch.einsum("rhn,nhd->rhd", weights, values), atol=1e-5)


def test_the_reference_is_attention_over_all_keys() -> None:
    batch = make_batch(torch.float32)
    out = expected(batch)
    layout, latents = batch.layout, batch.latents
    above = {0: [0, 1, 2], 1: [0, 1, 2], 2: [], 3: [0, 1], 4: [0, 3]}
    flat = [x.flatten(0, 1) for x in (batch.k_cache, batch.v_cache)]
    for row, nodes in above.items():
        keys, values = [], []
        for node in nodes:
            listed = layout.blocks[layout.block_start[node] : layout.block_start[node + 1]]
            blocks = np.arange(listed[0], listed[0] + 9) if layout.contiguous[node] else listed
            token = np.arange(layout.length[node])
            slots = torch.from_numpy(blocks[token // SIZE] * SIZE + token % SIZE).long().to(DEVICE)
            k, v = latents.read(slots) if layout.fp8[node] else (x[slots] for x in flat)
            keys.append(k), values.append(v)
        count = int(batch.position[row] - batch.prefix_length[row]) + 1
        token = torch.arange(count, device=DEVICE)
        slots = batch.block_tables[row][token // SIZE].long() * SIZE + token % SIZE
        k, v = latents.read(slots)
        keys.append(k), values.append(v)
        weights = torch.einsum("hd,nhd->hn", batch.q[row] * 0.2, torch.cat(keys)).softmax(-1)
        assert torch.allclose(out[row], torch.einsum("hn,nhd->hd", weights, torch.cat(values)),
                              atol=1e-4)  # fmt: skip


@each_dtype
def test_the_kernels_are_the_reference(dtype: torch.dtype) -> None:
    batch = make_batch(dtype)
    plan = plan_of(batch, dtype)
    put = []
    out = decode_latents(
        batch.q, batch.k_cache, batch.v_cache, batch.latents, plan, *batch.rows,
        put=lambda: put.append(1), scale=0.2,
    )  # fmt: skip
    assert put == [1]
    assert_close(out, expected(batch))


@pytest.mark.turn(3)
@each_dtype
@pytest.mark.parametrize("splits", [1, 2, 5])
@pytest.mark.parametrize("keys", [16, 32])
def test_tiles_and_splits_make_no_difference(splits: int, keys: int, dtype: torch.dtype) -> None:
    batch = make_batch(dtype)
    plan = plan_of(batch, dtype)
    q = batch.latents.absorb(batch.q)
    found = []
    for tile, parts in ((LatentTile(16, keys, 4, 2), splits), (None, 1)):
        out, lse = own_latents(
            q, batch.latents, plan, *batch.rows, scale=0.2, tile=tile, num_splits=parts
        )
        weights = lse.softmax(1)[..., None]
        weighed = torch.where(weights == 0, 0.0, out.float() * weights).sum(1)
        found.append((weighed, lse.logsumexp(1)))
    (one, one_lse), (other, other_lse) = found
    assert_close(one.to(dtype), other)  # parts are written in the dtype, and rounded
    assert_close(one_lse, other_lse)


@each_dtype
def test_storing(dtype: torch.dtype) -> None:
    """What is not finite becomes a key of NaN with a latent of zeros; negative slots are left."""
    random = torch.Generator().manual_seed(1)
    latent = torch.randn(5, RANK, generator=random).to(DEVICE, dtype)
    rest = torch.randn(5, 3, 8, generator=random).to(DEVICE, dtype)[:, 1]
    latent[1, 7], latent[2, 0] = torch.nan, torch.inf
    slots = torch.tensor([3, 17, 0, -1, 20], device=DEVICE)
    found = []
    for store in (store_in_torch, store_latents):
        blocks = torch.zeros(2, SIZE, WIDTH, dtype=dtype, device=DEVICE)
        store(latent, rest, blocks, slots)
        found.append(blocks.flatten(0, 1))
    assert torch.equal(*(each.nan_to_num(nan=9.0) for each in found))
    blocks = found[1]
    assert torch.equal(blocks[3, :48], torch.cat([latent[0], rest[0]]))
    assert (blocks[17, :RANK] == 0).all() and blocks[17, RANK:48].isnan().all()
    assert (blocks.flatten().nan_to_num(nan=1.0) != 0).sum() == 2 * 48 + 2 * 8


def test_latents_too_large_for_a_program_are_named() -> None:
    assert unsupported(20, 512, 576, torch.bfloat16) is None
    assert unsupported(16, 512, 576, torch.float32) is None
    reason = unsupported(16, 4096, 4160, torch.float32)
    assert reason is not None and reason.startswith("latents of 4096 take")
