"""Torch's flash kernel as the reference's parts: the same numbers, whatever the neighbours are."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sharegen.kernels import flash, reference
from sharegen.kernels.dense import dense_one
from sharegen.kernels.flash_packing import LEAST, pack
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.partial import Partial, finish
from tests.kernels.trees import DEVICE, Batch, make_shape, random_batch, random_tree

HEADS = [(4, 1), (4, 4), (6, 2)]

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="torch's kernel for CPUs")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dense(
    q: Tensor,
    *nodes: tuple[slice, Tensor, Tensor],
    softcap: float | None = None,
    lowest: Tensor | None = None,
    kind: type[reference.ReferencePlan] = flash.FlashPlan,
    size: int = 16,
) -> Partial:
    """Nodes of one level: their rows, keys and values. size: of a block; others' keys are NaN.

    Every other node's blocks are listed, with one that is not read.
    """
    lengths = [len(k) for _, k, _ in nodes]
    first = np.cumsum([1, *(-(-length // size) for length in lengths)], dtype=np.int32)
    caches = []
    for which, fill in ((1, torch.nan), (2, 0.0)):
        cache = torch.full((first[-1] * size, *nodes[0][which].shape[1:]), fill)
        for node, start in zip(nodes, first, strict=False):
            cache[start * size : start * size + len(node[which])] = node[which]
        caches.append(cache.unflatten(0, (-1, size)))
    count = len(nodes)
    contiguous = np.arange(count) % 2 == 0
    blocks = [
        [start] if is_contiguous else [*range(start, end), 0]
        for start, end, is_contiguous in zip(first, first[1:], contiguous, strict=False)
    ]
    layout = SharedLayout(
        order=np.arange(len(q), dtype=np.int32), length=np.array(lengths, np.int32),
        position=np.zeros(count, np.int32), level=np.zeros(count, np.int32),
        row_start=np.array([rows.start for rows, *_ in nodes], np.int32),
        row_end=np.array([rows.stop for rows, *_ in nodes], np.int32),
        block_start=np.cumsum([0, *map(len, blocks)], dtype=np.int32),
        blocks=np.concatenate(blocks).astype(np.int32), contiguous=contiguous,
        fp8=np.zeros(count, np.bool_),
    )  # fmt: skip
    [part] = kind(layout, size, q.device).by_level(q, *caches, None, lowest, softcap)
    return part


def common(q: Tensor, k: Tensor, v: Tensor, **how: float | None) -> Partial:
    return dense(q, (slice(0, len(q)), k, v), **how)


def assert_same(part: Partial, expected: Partial) -> None:
    torch.testing.assert_close(finish(part, None), finish(expected, None), atol=2e-6, rtol=1e-5)
    lse = part.top + part.total.log()
    torch.testing.assert_close(lse, expected.top + expected.total.log(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize(("rows", "keys"), [(1, 16), (3, 700), (70, 17), (5, 7), (16, 1)])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_common_keys(heads: tuple[int, int], rows: int, keys: int, softcap: float | None) -> None:
    q = normal(rows, heads[0], 24) / 4
    k, v = normal(keys, heads[1], 24, seed=1), normal(keys, heads[1], 24, seed=2)
    expected = dense_one(q, k, v, None, softcap)
    assert_same(common(q, k, v, softcap=softcap), expected)
    other = normal(keys, heads[1], 8, seed=3)  # of another size than the keys
    expected = dense_one(q, k, other, None, softcap)
    assert_same(common(q, k, other, softcap=softcap), expected)


def empty_plan(kind: type[reference.ReferencePlan]) -> reference.ReferencePlan:
    batch = random_batch(make_shape(4, 1, torch.float32), [], [1])
    return kind(batch.layout, batch.shape.block_size, batch.q.device)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", [1, 15, 16, 75])
def test_causal(heads: tuple[int, int], rows: int) -> None:
    q = normal(rows, heads[0], 16) / 4
    k, v = normal(rows, heads[1], 16, seed=1), normal(rows, heads[1], 16, seed=2)
    expected = empty_plan(reference.ReferencePlan).causal(q, k, v, None)
    assert_same(empty_plan(flash.FlashPlan).causal(q, k, v, None), expected)


def decode(kernel: ModuleType, batch: Batch, **how: Tensor) -> Tensor:
    """By the reference or by flash; a row's last own keys may lie among others that are NaN."""
    of_flash = flash.FlashPlan, flash.FlashSuffixPlan
    of_reference = reference.ReferencePlan, reference.SuffixPlan
    kind, own_kind = of_flash if kernel is flash else of_reference
    plan = kind(batch.layout, batch.shape.block_size, batch.q.device)
    tables = batch.block_tables, batch.prefix_length, batch.position
    width = (batch.shape.num_kv_heads * batch.shape.key_size,) if kernel is flash else ()
    suffix = own_kind(plan, batch.shape.block_size, *tables, *width)
    values = batch.v_cache.nan_to_num()  # an engine keeps them finite
    return kernel.decode_attention(batch.q, batch.k_cache, values, plan, suffix, scale=0.2, **how)


@pytest.mark.turn(3)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("block_size", [5, 16, 64])
def test_a_step(heads: tuple[int, int], block_size: int) -> None:
    shape = make_shape(*heads, torch.float32, block_size=block_size)
    rng = np.random.default_rng(block_size)
    for rows in (1, 7, 40):
        own = rng.integers(1, [2, 40, 300][rows % 3], rows).tolist()
        nodes = [(700, 0, rows), *((n, s, e) for n, s, e in random_tree(rng, rows))][: rows + 1]
        nodes = nodes if rows > 1 else []
        batch = random_batch(shape, nodes, own, padding=3, scattered=(1,), seed=rows)
        sinks = normal(heads[0])
        for how in ({}, {"sinks": sinks}):
            expected = decode(reference, batch, **how)
            torch.testing.assert_close(decode(flash, batch, **how), expected, atol=3e-6, rtol=1e-5)
        stale, among_nan = batch.k_cache.isnan(), decode(flash, batch)
        assert stale.any()
        for other in (torch.inf, -torch.inf):
            batch.k_cache[stale] = other
            assert torch.equal(decode(flash, batch), among_nan)


def test_a_step_in_bfloat16() -> None:
    batch = random_batch(make_shape(4, 2, torch.bfloat16), [(90, 0, 5)], [1, 3, 17, 40, 9])
    expected = decode(reference, batch)
    assert expected.dtype == torch.bfloat16
    torch.testing.assert_close(decode(flash, batch), expected, atol=1e-2, rtol=1e-2)


def test_a_row_of_a_step_is_computed_as_among_others() -> None:
    """Also beside rows of other lengths, under a node of more rows, and where others are deeper."""
    lengths = [1, 33, 64, 7, 200, 90, 31, 530, 32, 5, 64, 17] * 3
    shape = make_shape(4, 1, torch.float32)
    nodes = [(70, 0, 36), (20, 0, 9), (45, 9, 30), (16, 10, 20)]
    batch = random_batch(shape, nodes, lengths)
    whole = decode(flash, batch)
    for row in (3, 12, 24, 35):  # in tree order
        path = [node for node, (_, first, end) in enumerate(nodes) if first <= row < end]
        layout = batch.layout
        blocks = [layout.blocks[layout.block_start[n] : layout.block_start[n + 1]] for n in path]
        alone = replace(
            layout, order=layout.order[[row]], length=layout.length[path],
            position=layout.position[path], level=layout.level[path],
            row_start=np.zeros(len(path), np.int32), row_end=np.ones(len(path), np.int32),
            block_start=np.cumsum([0, *map(len, blocks)]).astype(np.int32),
            blocks=np.concatenate(blocks), contiguous=layout.contiguous[path],
            fp8=layout.fp8[path],
        )  # fmt: skip
        place = int(layout.order[row])
        assert torch.equal(decode(flash, replace(batch, layout=alone))[place], whole[place])


def test_rows_that_have_ended_and_rows_without_a_result() -> None:
    batch = random_batch(make_shape(4, 2, torch.float32), [(40, 0, 3)], [3, 50, 20, 9])
    before = decode(flash, batch)
    ended, wrong, other, unshared = batch.layout.order.tolist()
    batch.position[ended] = -1  # on the device; the host does not know yet
    own = batch.slots[wrong][-1]
    batch.k_cache.view(-1, *batch.k_cache.shape[2:])[own] = torch.nan
    after = decode(flash, batch)
    assert after[ended].isfinite().all() and after[wrong].isnan().all()
    for row in (other, unshared):
        assert torch.equal(after[row], before[row])
    batch.prefix_length[unshared], batch.position[unshared] = 0, -1
    assert not decode(flash, batch)[unshared].any()  # neither shared nor own keys


@pytest.mark.parametrize("keys", [5, 16, 77, 128, 129, 515, 700])
@pytest.mark.parametrize("heads", HEADS)
def test_a_row_is_computed_as_among_others(heads: tuple[int, int], keys: int) -> None:
    q = normal(210, heads[0], 64) / 8
    k, v = normal(keys, heads[1], 64, seed=1), normal(keys, heads[1], 64, seed=2)
    whole = common(q, k, v)
    for rows in (slice(0, 1), slice(17, 20), slice(60, 209), slice(193, 210)):
        part = common(q[rows], k, v)
        assert torch.equal(part.out, whole.out[rows]) and torch.equal(part.top, whole.top[rows])


def test_nodes_of_one_level() -> None:
    """Each as by itself: also with few keys, of equal and of unequal length."""
    q = normal(90, 4, 24) / 4
    nodes = []
    for rows, keys in (((0, 3), 40), ((3, 7), 5), ((9, 50), 300), ((50, 51), 16), ((60, 72), 64),
                       ((72, 76), 33), ((76, 90), 45)):  # fmt: skip
        k, v = normal(keys, 2, 24, seed=keys), normal(keys, 2, 24, seed=keys + 1)
        nodes.append((slice(*rows), k, v))
    for size in (5, 16, 64):
        part = dense(q, *nodes, size=size)
        assert_same(part, dense(q, *nodes, kind=reference.ReferencePlan))
        for rows, k, v in nodes:
            alone = common(q[rows], k, v, size=size)
            assert torch.equal(part[rows].out, alone.out)
            assert torch.equal(part[rows].top, alone.top)
        none = part[7:9]
        assert not none.out.any() and not none.total.any()  # rows of no node
    lowest = torch.arange(90) % 40
    hidden = [dense(q, *nodes, lowest=lowest, kind=kind)
              for kind in (flash.FlashPlan, reference.ReferencePlan)]  # fmt: skip
    assert_same(*hidden)


def test_many_rows_under_short_nodes_are_read_in_several_calls() -> None:
    q = normal(900, 4, 64) / 8
    nodes = [(slice(i, i + 30), normal(100, 4, 64, seed=i), normal(100, 4, 64, seed=i + 1))
             for i in range(0, 900, 30)]  # fmt: skip
    part = dense(q, *nodes)
    for rows, k, v in nodes[::7]:
        alone = common(q[rows], k, v)
        assert torch.equal(part[rows].out, alone.out) and torch.equal(part[rows].top, alone.top)


def test_pieces_are_filled_up_where_that_takes_less_time_than_a_call() -> None:
    def rows_read(*rows: int) -> list[list[int]]:
        starts = np.cumsum([0, *rows])
        nodes = [
            reference.Node(0, slice(int(a), int(b)), 60, slice(0, 60), np.arange(4), 0, False)
            for a, b in itertools.pairwise(starts)
        ]
        level = pack(nodes, int(starts[-1]), 4, 16, 64, 4)
        return [[len(p.bias), len(p.queries) // len(p.bias)] for p in level.pieces]

    assert rows_read(*[5] * 30) == [[30, 20]]
    assert rows_read(*[5] * 30, 4, 3) == [[32, 20]]
    assert rows_read(*[5] * 30, *[1] * 30) == [[30, 20], [30, 4]]
    assert rows_read(40, 9) == [[7, 32]]


def test_rows_come_in_sixteens_where_fewer_are_rounded_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rounded(q: torch.Tensor, *args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = computed(q, *args, **options)
        return out * (1 + 1e-6 * (q.shape[2] == 8)), lse

    computed = flash._flash
    monkeypatch.setattr(flash, "_flash", rounded)
    assert flash._multiple.__wrapped__(64) == LEAST
