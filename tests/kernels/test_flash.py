"""Torch's flash kernel as the reference's parts: the same numbers, whatever the neighbours are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sharegen.kernels import flash, reference
from sharegen.kernels.partial import Common, Partial, finish

HEADS = [(4, 1), (4, 4), (6, 2)]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, softcap: float | None = None
) -> Partial:
    return flash.dense(q, [Common(slice(0, len(q)), k, v)], softcap)


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
    assert_same(dense(q, k, v, softcap), reference.dense_one(q, k, v, None, softcap))
    other = normal(keys, heads[1], 8, seed=3)  # of another size than the keys
    assert_same(dense(q, k, other, softcap), reference.dense_one(q, k, other, None, softcap))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rows", [1, 15, 16, 75])
def test_causal(heads: tuple[int, int], rows: int) -> None:
    q = normal(rows, heads[0], 16) / 4
    k, v = normal(rows, heads[1], 16, seed=1), normal(rows, heads[1], 16, seed=2)
    assert_same(flash.causal(q, k, v, None), reference.causal(q, k, v, None))


@pytest.mark.parametrize("heads", HEADS)
def test_own_keys_among_those_of_others_that_are_not_finite(heads: tuple[int, int]) -> None:
    q = normal(6, heads[0], 16) / 4
    k, v = normal(6, 32, heads[1], 16, seed=1), normal(6, 32, heads[1], 16, seed=2)
    visible = torch.arange(32) < torch.tensor([1, 32, 7, 20, 31, 2])[:, None]
    expected = flash.each(q, k, v, visible, None)
    assert_same(expected, reference.dense_each(q, k, v, visible, None))
    for wrong in (torch.nan, torch.inf):
        stale = k.masked_fill(~visible[..., None, None], wrong)
        part = flash.each(q, stale, v, visible, None)
        assert torch.equal(part.out, expected.out) and torch.equal(part.top, expected.top)
    k[2, 3] = torch.nan  # its own: the row has no result, and the others have theirs
    part = flash.each(q, k, v, visible, None)
    assert part.top.isnan().any(1).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("keys", [5, 16, 515, 700])
@pytest.mark.parametrize("heads", HEADS)
def test_a_row_is_computed_as_among_others(heads: tuple[int, int], keys: int) -> None:
    q = normal(210, heads[0], 64) / 8
    k, v = normal(keys, heads[1], 64, seed=1), normal(keys, heads[1], 64, seed=2)
    whole = dense(q, k, v)
    for rows in (slice(0, 1), slice(17, 20), slice(60, 209), slice(193, 210)):
        part = dense(q[rows], k, v)
        assert torch.equal(part.out, whole.out[rows]) and torch.equal(part.top, whole.top[rows])


def test_nodes_of_one_level() -> None:
    """Each as by itself: also with too few keys, and with some hidden."""
    q = normal(90, 4, 24) / 4
    nodes = []
    for rows, keys in (((0, 3), 40), ((3, 7), 5), ((9, 50), 300), ((50, 51), 16), ((60, 90), 33)):
        k, v = normal(keys, 2, 24, seed=keys), normal(keys, 2, 24, seed=keys + 1)
        visible = normal(rows[1] - rows[0], keys) > 0 if keys == 33 else None
        nodes.append(Common(slice(*rows), k, v, visible))
    part = flash.dense(q, nodes, None)
    assert_same(part, reference.dense(q, nodes, None))
    for node in nodes:
        own = q[node.rows]
        alone = flash.dense(own, [replace(node, rows=slice(0, len(own)))], None)
        assert torch.equal(part[node.rows].out, alone.out)
        assert torch.equal(part[node.rows].top, alone.top)
    none = part[7:9]
    assert not none.out.any() and not none.total.any()  # rows of no node
