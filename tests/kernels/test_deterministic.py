"""A deterministic plan's rows have the same bits in any batch, in decoding and in prefill.

On a GPU (`-m gpu` beside the rest) with the tiles of real jobs, which the interpreter is too slow
for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sharegen.kernels import attention_plan, suffix
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import CostModel
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.layout import FOLLOWING, SharedLayout
from sharegen.kernels.prefill import PrefillPlan, prefill_attention
from sharegen.kernels.tiles import Tile
from tests.kernels.trees import (
    DEVICE,
    Batch,
    assert_close,
    make_shape,
    naive_decode,
    prompt_layout,
    random_batch,
    random_caches,
)

SMALL = Tile(lines=16, keys=16, num_warps=4, num_stages=2)
ON_GPU = DEVICE.type == "cuda"
DTYPES = [torch.bfloat16, torch.float16] if ON_GPU else [torch.float32]


@pytest.fixture(autouse=True)
def short_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts that the interpreter can do are cut, too."""
    if not ON_GPU:
        monkeypatch.setattr(attention_plan, "CUTS", (32, 80))
        monkeypatch.setattr(attention_plan, "CUT", 64)
        monkeypatch.setattr(suffix, "OWN_CUT", 16)
        monkeypatch.setattr(suffix, "OWN_PARTS", 3)


def with_nodes(layout: SharedLayout, nodes: list[int], **changes: Any) -> SharedLayout:
    """The layout with these of its nodes alone."""
    listed = [layout.blocks[layout.block_start[i] : layout.block_start[i + 1]] for i in nodes]
    of_nodes = ("length", "position", "level", "row_start", "row_end", "contiguous", "fp8", "alone")
    kept: dict[str, Any] = {
        name: None if getattr(layout, name) is None else getattr(layout, name)[nodes]
        for name in of_nodes
    }
    kept["block_start"] = np.cumsum([0, *map(len, listed)]).astype(np.int32)
    kept["blocks"] = np.concatenate([np.zeros(0, np.int32), *listed])
    return replace(layout, **(kept | changes))


def some_of(batch: Batch, kept: list[int]) -> tuple[Batch, list[int]]:
    """The rows at these places of the tree order alone, and which rows of the batch they were."""
    layout, places = batch.layout, np.array(kept)
    rows = layout.order[places]
    start, end = (
        np.searchsorted(places, edge).astype(np.int32)
        for edge in (layout.row_start, layout.row_end)
    )
    nodes = np.flatnonzero(end > start).tolist()
    some = with_nodes(
        layout, nodes, order=np.arange(len(rows), dtype=np.int32), row_start=start[nodes],
        row_end=end[nodes],
    )  # fmt: skip
    index = torch.from_numpy(rows.astype(np.int64)).to(DEVICE)
    of_rows: dict[str, Any] = {
        name: getattr(batch, name)[index]
        for name in ("q", "block_tables", "prefix_length", "position")
    }
    return replace(batch, layout=some, **of_rows), rows.tolist()


def attend(batch: Batch, tile: Tile | None, **options: Any) -> torch.Tensor:
    plan = AttentionPlan(
        batch.shape, len(batch.q), DEVICE, tile=tile, costs=CostModel(), deterministic=True
    )
    plan.update(batch.layout)
    return decode_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
        batch.position, scale=batch.shape.key_size**-0.5, **options,
    )  # fmt: skip


def a_tree(dtype: torch.dtype) -> Batch:
    """Nineteen rows under seven nodes, with tokens of their own."""
    rng = np.random.default_rng(3)
    scale, size = (30, 128) if ON_GPU else (1, 16)
    nodes = [(70 * scale, 0, 14), (90 * scale, 0, 9), (20, 0, 4), (33, 4, 9), (20, 9, 10),
             (40, 14, 19), (7, 18, 19)]  # fmt: skip
    alone = np.array([False, False, False, False, True, False, True])
    suffixes = [(int(rng.integers(1, 80)) - 1) * scale + 1 for _ in range(19)]
    heads = (32, 8) if ON_GPU else (2, 1)
    shape = make_shape(*heads, dtype, key_size=size, value_size=size)
    batch = random_batch(shape, nodes, suffixes, scattered=(3,))
    return replace(batch, layout=replace(batch.layout, alone=alone))


of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
"""In float16 the kernel for many rows on Hopper cards is left out."""


@pytest.mark.turn(8)
@of_dtypes
@pytest.mark.parametrize("options", [{}, {"window": 90}], ids=str)
def test_a_row_has_the_same_bits_beside_any_others(
    options: dict[str, int], dtype: torch.dtype
) -> None:
    batch = a_tree(dtype)
    tile = None if ON_GPU else SMALL
    whole = attend(batch, tile, **options)
    wanted = naive_decode(batch, scale=batch.shape.key_size**-0.5, **options)
    assert_close(whole, wanted)
    for kept in ([7], [0, 10, 18], [1, 2, 3, 9, 10, 13], [14, 18], list(range(3, 19))):
        some, rows = some_of(batch, kept)
        assert torch.equal(attend(some, tile, **options), whole[rows])


@of_dtypes
def test_a_sink_comes_in_alike_whether_anything_is_shared_in_the_batch_or_not(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """A row that reads all of its prompt by itself, in a batch of such and beside others."""
    monkeypatch.setattr(suffix, "OWN_CUT", attention_plan.OWN_CUT)
    heads, size = ((32, 8), 128) if ON_GPU else ((2, 1), 16)
    shape = make_shape(*heads, dtype, key_size=size, value_size=size)
    batch = random_batch(shape, [(20, 0, 2), (40, 2, 3)], [5, 9, 11])
    batch = replace(batch, layout=replace(batch.layout, alone=np.array([False, True])))
    sinks = torch.linspace(0.5, 1.5, shape.num_heads, device=DEVICE)
    tile = None if ON_GPU else SMALL
    whole = attend(batch, tile, sinks=sinks)
    by_itself, rows = some_of(batch, [2])
    assert torch.equal(attend(by_itself, tile, sinks=sinks), whole[rows])


@pytest.mark.turn(9)
@of_dtypes
@pytest.mark.parametrize("place", [0, 5, 13])
def test_a_row_does_not_mind_a_neighbour_whose_scores_are_large(
    place: int, dtype: torch.dtype
) -> None:
    batch = a_tree(dtype)
    tile = None if ON_GPU else SMALL
    large = int(batch.layout.order[place])
    q = batch.q.clone()
    q[large] *= 400.0  # its sums grow beyond what the kernel for many rows looks out for
    beside = replace(batch, q=q)
    others = [row for row in range(len(q)) if row != large]
    whole, found = attend(batch, tile), attend(beside, tile)
    assert torch.equal(found[others], whole[others])
    by_itself, _ = some_of(beside, [place])
    assert torch.equal(attend(by_itself, tile)[0], found[large])
    assert_close(found, naive_decode(beside, scale=batch.shape.key_size**-0.5))


@pytest.mark.slow
@pytest.mark.turn(4)
@of_dtypes
def test_a_chunk_has_the_same_bits_beside_any_others(dtype: torch.dtype) -> None:
    scale, size = (20, 128) if ON_GPU else (1, 16)
    heads = (32, 8) if ON_GPU else (2, 1)
    shape = make_shape(*heads, dtype, key_size=size, value_size=size)
    nodes = [(70 * scale, 0, 3), (90, 0, 1), (30, 1, 2)]
    chunks = [([0, 1], 40), ([0, 2], 21), ([0], 33), ([], 50)]
    generator = torch.Generator().manual_seed(0)
    total = sum(length for _, length in chunks)
    k_cache, v_cache = random_caches(shape, 200 * scale, generator)
    for cache in (k_cache, v_cache):
        cache.copy_(torch.randn(cache.shape, generator=generator))
    q, k, v = (
        torch.randn(total, count, size, generator=generator).to(k_cache)
        for count in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
    )
    small = None if ON_GPU else SMALL

    def prefill(kept: list[int]) -> list[torch.Tensor]:
        """The outputs of these chunks, which are in one batch."""
        starts = np.cumsum([0, *(length for _, length in chunks)])
        rows = [np.arange(starts[i], starts[i + 1]) for i in kept]
        index = torch.from_numpy(np.concatenate(rows)).to(DEVICE)
        places = {old: new for new, old in enumerate(kept)}
        below = [
            (length, [places[i] for i in range(a, b) if i in places]) for length, a, b in nodes
        ]
        layout, cut = prompt_layout(
            [(n, at[0] if at else 0, at[-1] + 1 if at else 0) for n, at in below],
            [chunks[i] for i in kept], shape.block_size,
        )  # fmt: skip
        layout = with_nodes(layout, [i for i, (_, at) in enumerate(below) if at])
        plan = PrefillPlan(shape, total, DEVICE, tile=small, shared_tile=small, deterministic=True)
        plan.update(layout, cut.tolist())
        position = [
            np.arange(length) + sum(nodes[j][0] for j in path)
            for path, length in (chunks[i] for i in kept)
        ]
        at = torch.from_numpy(np.concatenate(position).astype(np.int32)).to(DEVICE)
        out = prefill_attention(
            q[index], k[index], v[index], k_cache, v_cache, plan, at, scale=size**-0.5
        )
        return list(out.split(np.diff(cut).tolist()))

    whole = prefill([0, 1, 2, 3])
    for kept in ([0], [1, 3], [3], [0, 2]):
        for i, out in zip(kept, prefill(kept), strict=True):
            assert torch.equal(out, whole[i])


def of_a_sample(dtype: torch.dtype, group: int, lengths: tuple[int, ...]) -> Batch:
    """Rows that are all tokens of as many samples as lengths, one after another, and dead ones."""
    heads = (8 * group, 8) if ON_GPU else (2 * group, 2)
    size = 128 if ON_GPU else 16
    shape = make_shape(*heads, dtype, key_size=size, value_size=size)
    nodes = [(40, 0, len(lengths)), (20, 0, 1)]
    whole = random_batch(shape, nodes, list(lengths), scattered=(0,))
    rows, position, order, ends = [], [], [], []
    for place in range(len(lengths)):
        row = int(whole.layout.order[place])
        first = int(whole.prefix_length[row])
        room = -(-lengths[place] // FOLLOWING) * FOLLOWING
        order += range(len(rows), len(rows) + lengths[place])
        rows += [row] * room
        position += [first + i if i < lengths[place] else -1 for i in range(room)]
        ends.append(len(order))
    index = torch.tensor(rows, device=DEVICE)
    at = torch.tensor(position, dtype=torch.int32, device=DEVICE)
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(len(rows), *whole.q.shape[1:], generator=generator).to(whole.q)
    starts = np.array([0, *ends], np.int32)
    layout = replace(
        whole.layout, order=np.array(order, np.int32), row_start=starts[whole.layout.row_start],
        row_end=starts[whole.layout.row_end], alone=np.zeros(2, bool),
    )  # fmt: skip
    return replace(
        whole, layout=layout, q=q, block_tables=whole.block_tables[index], position=at,
        prefix_length=torch.where(at < 0, 0, whole.prefix_length[index]),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.turn(4)
@of_dtypes
@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
def test_rows_of_a_sample_have_the_bits_that_they_have_by_themselves(
    group: int, dtype: torch.dtype
) -> None:
    """A program reads the keys of several rows once; the last keys are each row's own affair."""
    lengths = (1, 1100, 2048, 16, 700) if ON_GPU else (1, 37, 16, 50)
    batch = of_a_sample(dtype, group, lengths)
    tile = None if ON_GPU else SMALL
    alone = attend(batch, tile)
    together = attend(batch, tile, following=True)
    assert torch.equal(together, alone)
    assert alone[batch.position >= 0].abs().sum() > 0
