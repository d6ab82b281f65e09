"""Decode attention against each row's whole context in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sharegen.engine.model.fp8.products import LEAST
from sharegen.kernels import suffix
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.cost import EACH_ROW, CostModel, Decided
from sharegen.kernels.decode import decode_attention
from sharegen.kernels.fp8_rows import FP8Rows
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.merge import merge_into_rows, merge_partials
from sharegen.kernels.roles import is_hopper
from sharegen.kernels.shared import shared_attention
from sharegen.kernels.tiles import Tile
from tests.kernels.test_fp8_rows import assert_rows
from tests.kernels.trees import (
    DEVICE,
    DTYPES,
    Batch,
    assert_close,
    assert_guard,
    each_dtype,
    guarded,
    make_shape,
    naive_decode,
    random_batch,
    random_tree,
)

SMALL = Tile(lines=16, keys=16, num_warps=4, num_stages=2)  # so that small trees fill many tiles


class Others(Decided):
    """Reads per sequence what `Decided` shares, and shares the rest."""

    def choose_unshared(self, layout: SharedLayout, *_: object) -> np.ndarray:
        return ~super().choose_unshared(layout)


ATTENTION_MODES = {
    "shared": None,
    "per sequence": Decided(every=1),
    "mixed": Decided(every=2),
    "otherwise mixed": Others(every=2),
}
# At every turn one that shares all and one that shares some.
each_mode = pytest.mark.parametrize(
    "costs",
    [
        pytest.param(costs, marks=pytest.mark.slow if name in ("per sequence", "mixed") else ())
        for name, costs in ATTENTION_MODES.items()
    ],
    ids=ATTENTION_MODES,
)


def long_in_interpreter(test: Callable[..., None]) -> Callable[..., None]:
    """For tests that take minutes there; on a GPU they run with the others."""
    return pytest.mark.slow(pytest.mark.turn(10)(test)) if DEVICE.type == "cpu" else test


def attend(
    batch: Batch,
    tile: Tile | None = SMALL,
    costs: CostModel | None = None,
    arriving: bool = False,
    **options: object,
) -> torch.Tensor:
    """Decode attention into a poisoned, guarded output. costs: which nodes are shared."""
    shape = batch.shape
    plan = AttentionPlan(
        shape, len(batch.q) + 3, DEVICE, tile=tile, num_programs=5, costs=costs, arriving=arriving
    )
    plan.partial_out.fill_(float("nan"))
    plan.partial_lse.fill_(float("nan"))
    plan.update(batch.layout)
    out, whole = guarded((len(batch.q), shape.num_heads, shape.value_size), shape.dtype)
    result = decode_attention(
        batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
        batch.position, out=out, **options,
    )  # fmt: skip
    assert_guard(whole)
    return result


TREES = {
    "no nodes": ([], [5, 1, 33]),
    "one node": ([(63, 0, 4)], [1, 7, 16, 17]),
    "few-shot and problems": ([(111, 0, 5), (20, 0, 3), (17, 3, 5)], [1, 2, 40, 3, 16]),
    "four levels": ([(33, 0, 4), (16, 0, 3), (1, 0, 3), (40, 1, 3), (5, 3, 4)], [1, 5, 18, 2]),
    "a forest": ([(40, 0, 2), (16, 3, 5), (15, 3, 5)], [3, 2, 50, 1, 4]),
    "no suffix": ([(40, 0, 3)], [0, 1, 0]),
}


@each_dtype
@each_mode
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.turn(5)
def test_trees(tree: str, costs: CostModel | None, dtype: torch.dtype) -> None:
    nodes, suffixes = TREES[tree]
    batch = random_batch(make_shape(4, 2, dtype), nodes, suffixes, padding=2)
    out = attend(batch, costs=costs, scale=0.125)
    assert_close(out, naive_decode(batch, scale=0.125))
    assert (out[-2:] == 0).all()


@pytest.mark.parametrize("costs", [Decided(), EACH_ROW], ids=["all shared", "per sequence"])
@pytest.mark.parametrize("tree", ["no nodes", "few-shot and problems"])
@pytest.mark.turn(2)
def test_both_phases_of_rows_that_arrive_may_have_nothing_to_read(
    tree: str, costs: CostModel
) -> None:
    nodes, suffixes = TREES[tree]
    batch = random_batch(make_shape(4, 2, torch.float32), nodes, suffixes, padding=2)
    out = attend(batch, costs=costs, arriving=True, scale=0.125)
    assert_close(out, naive_decode(batch, scale=0.125))


@each_dtype
@each_mode
@pytest.mark.parametrize("tree", ["no nodes", "few-shot and problems", "no suffix"])
@pytest.mark.turn(6)
def test_rows_in_e4m3_are_those_of_the_result(
    tree: str, costs: CostModel | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same parts: those of rows are rounded to the dtype first, others are not."""
    nodes, suffixes = TREES[tree]
    batch = random_batch(make_shape(4, 2, dtype), nodes, suffixes, padding=2)
    rows = FP8Rows.empty(len(batch.q), 4 * 64, DEVICE, LEAST)
    out = torch.empty_like(batch.q)

    def merge_into_both(*parts: Any, sinks: torch.Tensor | None) -> None:
        merge_partials(*parts[:-1], out, sinks=sinks)
        merge_into_rows(*parts, sinks=sinks)

    monkeypatch.setattr(suffix, "merge_into_rows", merge_into_both)
    assert attend(batch, costs=costs, scale=0.125, rows=rows) is rows.numbers
    assert_close(out, naive_decode(batch, scale=0.125))
    assert_rows(rows, out.flatten(1))
    assert (rows.numbers[-2:].float() == 0).all()


@each_mode
@pytest.mark.turn(4)
def test_a_key_of_nan_is_seen_by_the_rows_below_it_alone(costs: CostModel | None) -> None:
    """Tiles hold rows of several nodes."""
    nodes, suffixes = TREES["a forest"]
    batch = random_batch(make_shape(4, 2, torch.float32), nodes, suffixes, padding=2)
    expected = attend(batch, costs=costs, scale=0.125)
    slot = int(batch.slots[batch.layout.order[0]][7])  # of the first node
    batch.k_cache.view(-1, *batch.k_cache.shape[2:])[slot, :, 3] = torch.nan
    out = attend(batch, costs=costs, scale=0.125)
    below = batch.layout.order[:2].tolist()
    others = [row for row in range(len(out)) if row not in below]
    assert out[below].isnan().all() and torch.equal(out[others], expected[others])


@each_dtype
@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (5, 1), (7, 1), (8, 1), (6, 2)])
@pytest.mark.turn(3)
def test_groups(heads: tuple[int, int], dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(*heads, dtype), [(35, 0, 4), (17, 1, 4)], [1, 3, 17, 2])
    assert_close(attend(batch, scale=0.125), naive_decode(batch, scale=0.125))


@pytest.mark.slow
@each_dtype
@each_mode
@pytest.mark.parametrize("heads", [(12, 1), (48, 1), (128, 1)])
@pytest.mark.turn(6)
def test_large_groups(heads: tuple[int, int], costs: CostModel | None, dtype: torch.dtype) -> None:
    """In the default tiles, which grow with the group."""
    batch = random_batch(make_shape(*heads, dtype), [(35, 0, 4), (17, 1, 4)], [1, 3, 17, 2])
    out = attend(batch, tile=None, costs=costs, scale=0.125)
    assert_close(out, naive_decode(batch, scale=0.125))


@each_dtype
@pytest.mark.parametrize(
    "sizes", [(80, 80), (96, 96), (128, 128), (256, 256), (192, 128), (24, 40)]
)
@pytest.mark.turn(3)
def test_head_sizes(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    shape = make_shape(2, 1, dtype, key_size=sizes[0], value_size=sizes[1])
    batch = random_batch(shape, [(35, 0, 3)], [1, 3, 17])
    scale = sizes[0] ** -0.5
    assert_close(attend(batch, scale=scale), naive_decode(batch, scale=scale))


@each_dtype
@each_mode
@pytest.mark.parametrize("block_size", [1, 8, 24, 64])
@pytest.mark.turn(5)
def test_scattered_nodes(block_size: int, costs: CostModel | None, dtype: torch.dtype) -> None:
    shape = make_shape(2, 1, dtype, block_size=block_size)
    nodes = [(70, 0, 4), (20, 0, 2), (33, 2, 4)]
    batch = random_batch(shape, nodes, [1, 3, 17, 2], scattered=(0, 2))
    assert_close(attend(batch, costs=costs, scale=0.125), naive_decode(batch, scale=0.125))


LIMITS = [
    {"window": 1},
    {"window": 20},
    {"window": 60},
    {"window": 500},
    {"attention_chunk": 32},
    {"softcap": 3.0},
    {"window": 45, "softcap": 0.5},
]


@each_dtype
@pytest.mark.parametrize("options", LIMITS, ids=str)
@each_mode
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.turn(3)
def test_limits(
    options: dict, has_sinks: bool, costs: CostModel | None, dtype: torch.dtype
) -> None:
    nodes = [(50, 0, 4), (30, 0, 2), (33, 2, 4)]
    batch = random_batch(make_shape(2, 1, dtype), nodes, [1, 25, 40, 60], padding=1, scattered=(2,))
    sinks = torch.linspace(-3, 4, 2, device=DEVICE).to(dtype) if has_sinks else None
    out = attend(batch, costs=costs, scale=0.125, sinks=sinks, **options)
    assert_close(out, naive_decode(batch, scale=0.125, sinks=sinks, **options))


RANDOM_LIMITS = [{}, {"window": 13}, {"attention_chunk": 9}, {"softcap": 2.0}]


@pytest.mark.parametrize("options", [{}, {"window": 700}, {"attention_chunk": 600}], ids=str)
@pytest.mark.turn(3)
def test_own_tokens_of_more_blocks_than_are_looked_up_at_once(options: dict[str, int]) -> None:
    batch = random_batch(make_shape(2, 1, torch.float32), [(40, 0, 3)], [1100, 495, 497], padding=1)
    out = attend(batch, scale=0.125, **options)
    assert_close(out, naive_decode(batch, scale=0.125, **options))


MANY_ROWS = Tile(128, 64, 8, 3)  # on a Hopper card a kernel of its own
NODES = [(700, 0, 40), (70, 0, 8), (130, 8, 33), (64, 12, 20), (5, 20, 33), (48, 33, 40)]


@pytest.mark.parametrize("scattered", [(), (0, 2, 4)], ids=str)
@pytest.mark.parametrize(("heads", "size"), [((8, 2), 128), ((7, 1), 64), ((3, 3), 80)])
@pytest.mark.turn(10)
def test_tiles_for_many_rows(heads: tuple[int, int], size: int, scattered: tuple[int, ...]) -> None:
    for dtype in DTYPES[1:]:
        shape = make_shape(*heads, dtype, key_size=size, value_size=size)
        suffixes = [1 + 7 * row % 40 for row in range(40)]
        batch = random_batch(shape, NODES, suffixes, padding=2, scattered=scattered)
        assert_close(attend(batch, MANY_ROWS, scale=0.1), naive_decode(batch, scale=0.1))


@pytest.mark.parametrize("factor", [12, 60, 4000])
@pytest.mark.turn(5)
@pytest.mark.slow
def test_scores_far_above_those_of_the_first_tile(factor: float) -> None:
    """Of a few keys, which lie in whole tiles and in a node's last one."""
    for dtype in DTYPES[1:]:
        shape = make_shape(8, 2, dtype, key_size=128, value_size=128)
        batch = random_batch(shape, NODES, [1 + 7 * row % 40 for row in range(40)], scattered=(1,))
        of_root = batch.slots[batch.layout.order[0]][[100, 300, 310, 695]]
        below = batch.slots[batch.layout.order[39]][[720]]
        keys = batch.k_cache.view(-1, *batch.k_cache.shape[2:])
        keys[torch.from_numpy(np.concatenate([of_root, below])).to(DEVICE)] *= factor
        assert_close(attend(batch, MANY_ROWS, scale=0.1), naive_decode(batch, scale=0.1), scale=3)


@pytest.mark.skipif(not is_hopper(DEVICE), reason="needs a Hopper card")
@pytest.mark.parametrize(("rows", "heads"), [(13, 8), (16, 7)])
def test_lines_of_no_row_change_nothing(rows: int, heads: int) -> None:
    """Of a band that is not full, and of a group that does not divide a tile's lines.

    By the last bit: a kernel that measured such lines by nothing computed all of them anew.
    """
    shape = make_shape(8, 1, DTYPES[-1], key_size=128, value_size=128)
    batch = random_batch(shape, [(300, 0, 16)], [1] * 16)
    batch.layout.order[:] = np.arange(16)

    def partials(rows: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        some = replace(shape, num_heads=heads)
        layout = replace(
            batch.layout, order=batch.layout.order[:rows], row_end=np.array([rows], np.int32)
        )
        plan = AttentionPlan(some, rows, DEVICE, tile=MANY_ROWS, num_programs=1)
        plan.update(layout)
        shared_attention(
            batch.q[:rows, :heads], batch.k_cache, batch.v_cache, plan, batch.position, scale=1.0
        )
        return plan.partial_out[:rows], plan.partial_lse[:rows]

    for of_some, of_all in zip(partials(rows, heads), partials(16, 8), strict=True):
        assert torch.equal(of_some, of_all[:rows, :heads])


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]


@each_mode
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.turn(4)
def test_random_trees(seed: int, costs: CostModel | None) -> None:
    """Ragged ones, with rows that no node names, in blocks of any size."""
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(1, 11))
    nodes = random_tree(rng, num_rows)
    dtype, block_size = DTYPES[seed // 4 % len(DTYPES)], int(rng.choice([1, 3, 8, 16]))
    heads = 4 if seed % 3 == 0 else 2  # on half as many of keys and values
    shape = make_shape(heads, heads // 2, dtype, key_size=16, value_size=16, block_size=block_size)
    batch = random_batch(
        shape, nodes, rng.integers(0, 40, num_rows).tolist(),
        padding=int(rng.integers(0, 4)),
        scattered=tuple(i for i in range(len(nodes)) if rng.random() < 0.3),
        seed=seed,
    )  # fmt: skip
    options = {"scale": 0.3} | RANDOM_LIMITS[seed % len(RANDOM_LIMITS)]
    if seed % 4:
        options["sinks"] = torch.from_numpy(rng.normal(size=heads)).to(DEVICE, dtype)
    assert_close(attend(batch, costs=costs, **options), naive_decode(batch, **options))


@long_in_interpreter
def test_thousands_of_rows() -> None:
    """Twice as many as a GPU decodes together by default, below a root and 32 nodes of 64 rows."""
    shape = make_shape(1, 1, torch.float16, key_size=16, value_size=16)
    nodes = [(20, 0, 2048)] + [(17, first, first + 64) for first in range(0, 2048, 64)]
    batch = random_batch(shape, nodes, [1 + row % 20 for row in range(2048)])
    out = attend(batch, tile=None, costs=ATTENTION_MODES["mixed"], scale=0.25)
    assert_close(out, naive_decode(batch, scale=0.25))


@each_dtype
def test_values_far_from_zero(dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(4, 2, dtype), [(90, 0, 3)], [1, 3, 17], offset=30.0)
    assert_close(attend(batch, scale=0.125), naive_decode(batch, scale=0.125), scale=30)


@each_dtype
def test_scores_far_from_zero(dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(2, 2, dtype), [(90, 0, 3)], [1, 3, 17])
    assert_close(attend(batch, scale=40.0), naive_decode(batch, scale=40.0), scale=4)


def test_default_tiles() -> None:
    batch = random_batch(make_shape(4, 2, torch.float16), [(150, 0, 6), (70, 0, 4)], [1] * 6)
    assert_close(attend(batch, tile=None, scale=0.125), naive_decode(batch, scale=0.125))


@pytest.mark.turn(4)
def test_replanned_buffers_keep_their_addresses() -> None:
    """A plan made anew in the same buffers serves the new tree, the smaller and the larger."""
    shape = make_shape(4, 2, torch.float32)
    plan = AttentionPlan(shape, 16, DEVICE, tile=SMALL)
    addresses = [t.data_ptr() for t in (plan.items, plan.order, plan.partial_out)]
    for nodes, suffixes in [TREES[name] for name in ("four levels", "no nodes", "a forest")]:
        batch = random_batch(shape, nodes, suffixes)
        plan.update(batch.layout)
        out = decode_attention(
            batch.q, batch.k_cache, batch.v_cache, plan, batch.block_tables, batch.prefix_length,
            batch.position, scale=0.125,
        )  # fmt: skip
        assert_close(out, naive_decode(batch, scale=0.125))
    assert addresses == [t.data_ptr() for t in (plan.items, plan.order, plan.partial_out)]
    assert plan.generation == 0
