"""The torch reference against each row's whole context in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from sharegen.kernels.partial import Partial, finish, merge
from sharegen.kernels.reference import (
    ReferencePlan,
    SuffixPlan,
    decode_attention,
    lowest_visible,
    prefill_attention,
    store,
)
from sharegen.kernels.tiles import AttentionShape
from tests.kernels.trees import (
    DEVICE,
    Batch,
    assert_close,
    each_dtype,
    make_shape,
    naive_decode,
    naive_row,
    prompt_layout,
    random_batch,
    random_tree,
)

WRONG = (
    1e4  # what slots without a token hold: finite, as the engine's caches are, but not to be seen
)

TREES = {
    "no nodes": ([], [5, 1, 33]),
    "one node": ([(63, 0, 4)], [1, 7, 16, 17]),
    "one row": ([(20, 0, 1)], [3]),
    "few-shot and problems": ([(111, 0, 5), (20, 0, 3), (17, 3, 5)], [1, 2, 40, 3, 16]),
    "four levels": ([(33, 0, 4), (16, 0, 3), (1, 0, 3), (40, 1, 3), (5, 3, 4)], [1, 5, 18, 2]),
    "a forest": ([(40, 0, 2), (16, 3, 5), (15, 3, 5)], [3, 2, 50, 1, 4]),
    "no suffix": ([(40, 0, 3)], [0, 1, 0]),
    "nothing at all": ([], [0, 0]),
}
LIMITS = [
    {"window": 1},
    {"window": 20},
    {"window": 60},
    {"window": 500},
    {"attention_chunk": 7},
    {"attention_chunk": 32},
    {"softcap": 3.0},
    {"window": 45, "softcap": 0.5},
]


def attend(batch: Batch, **options: object) -> torch.Tensor:
    for cache in (batch.k_cache, batch.v_cache):
        cache.nan_to_num_(nan=WRONG)
    size = batch.shape.block_size
    plan = ReferencePlan(batch.layout, size, DEVICE)
    suffix = SuffixPlan(plan, size, batch.block_tables, batch.prefix_length, batch.position)
    return decode_attention(batch.q, batch.k_cache, batch.v_cache, plan, suffix, **options)


def check(batch: Batch, scale_of_values: float = 1.0, **options: object) -> None:
    out = attend(batch, **options)
    assert out.dtype == batch.q.dtype
    live = batch.layout.order.tolist()
    assert_close(out[live], naive_decode(batch, **options)[live], scale_of_values)
    dead = [row for row in range(len(batch.q)) if row not in live]
    assert (out[dead] == 0).all()


@each_dtype
@pytest.mark.parametrize("tree", TREES)
def test_trees(tree: str, dtype: torch.dtype) -> None:
    nodes, suffixes = TREES[tree]
    check(random_batch(make_shape(4, 2, dtype), nodes, suffixes, padding=2), scale=0.125)


@each_dtype
@pytest.mark.parametrize("heads", [(1, 1), (3, 3), (5, 1), (8, 1), (6, 2)])
def test_groups(heads: tuple[int, int], dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(*heads, dtype), [(35, 0, 4), (17, 1, 4)], [1, 3, 17, 2])
    check(batch, scale=0.125)


@each_dtype
@pytest.mark.parametrize("sizes", [(80, 80), (192, 128), (24, 40), (8, 8), (256, 64)])
def test_key_and_value_sizes(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    shape = make_shape(2, 1, dtype, key_size=sizes[0], value_size=sizes[1])
    check(random_batch(shape, [(35, 0, 3)], [1, 3, 17]), scale=sizes[0] ** -0.5)


@each_dtype
@pytest.mark.parametrize("block_size", [1, 3, 8, 64])
def test_scattered_nodes(block_size: int, dtype: torch.dtype) -> None:
    shape = make_shape(4, 2, dtype, block_size=block_size)
    nodes = [(70, 0, 4), (20, 0, 2), (33, 2, 4)]
    check(random_batch(shape, nodes, [1, 3, 17, 2], scattered=(0, 2)), scale=0.125)


@each_dtype
@pytest.mark.parametrize("options", LIMITS, ids=str)
@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
def test_limits(options: dict, has_sinks: bool, dtype: torch.dtype) -> None:
    """Nodes that a row sees whole, in part and not at all; suffixes longer than a window."""
    nodes = [(50, 0, 4), (30, 0, 2), (33, 2, 4)]
    batch = random_batch(make_shape(4, 2, dtype), nodes, [1, 25, 40, 60], padding=1, scattered=(2,))
    sinks = torch.linspace(-3, 4, 4, device=DEVICE).to(dtype) if has_sinks else None
    check(batch, scale=0.125, sinks=sinks, **options)


@each_dtype
def test_sinks_alone(dtype: torch.dtype) -> None:
    """They count once, whatever the number of nodes; rows without any key come out as zero."""
    sinks = torch.tensor([50.0, -50.0, 0.0, 3.0], device=DEVICE).to(dtype)
    for tree in ("four levels", "no suffix", "nothing at all"):
        nodes, suffixes = TREES[tree]
        batch = random_batch(make_shape(4, 2, dtype), nodes, suffixes, padding=1)
        check(batch, scale=0.125, sinks=sinks)


@each_dtype
def test_numbers_far_from_zero(dtype: torch.dtype) -> None:
    batch = random_batch(make_shape(4, 2, dtype), [(90, 0, 3)], [1, 3, 17], offset=30.0)
    check(batch, 30, scale=0.125)
    batch = random_batch(make_shape(2, 2, dtype), [(90, 0, 3)], [1, 3, 17])
    check(batch, 4, scale=40.0)


@pytest.mark.parametrize("seed", range(12))
def test_random_trees(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 30))
    nodes = random_tree(rng, rows)
    sizes = {"key_size": 8, "value_size": 8, "block_size": int(rng.integers(1, 9))}
    batch = random_batch(
        make_shape(4, 2, torch.float32, **sizes),
        nodes,
        rng.integers(0, 70, rows).tolist(),
        padding=int(rng.integers(0, 4)),
        scattered=tuple(i for i in range(len(nodes)) if rng.random() < 0.3),
        seed=seed,
    )
    limit = [{}, {"window": 13}, {"attention_chunk": 9}, {"softcap": 2.0}][seed % 4]
    check(batch, scale=0.3, sinks=torch.randn(4, device=DEVICE) if seed % 3 else None, **limit)


def test_a_row_does_not_depend_on_the_others() -> None:
    """Bit for bit: alone, with some, with many (float32, on a CPU)."""
    if DEVICE.type != "cpu":
        pytest.skip("a GPU's products are chosen by their size")
    suffixes = [1 + 7 * i % 70 for i in range(40)]
    batch = random_batch(make_shape(4, 2, torch.float32), [(50, 0, 40)], suffixes)
    whole = attend(batch, scale=0.125)
    for count in (1, 2, 3, 15, 16, 17, 39):
        order = batch.layout.order[:count]
        layout = replace(batch.layout, order=order, row_end=np.array([count], np.int32))
        some = attend(replace(batch, layout=layout), scale=0.125)
        assert torch.equal(some[order], whole[order])


# -- partials -----------------------------------------------------------------------------------


def partial_of(scores: torch.Tensor, values: torch.Tensor) -> Partial:
    """scores: [rows, heads, L] float64; values: [L, D]."""
    top = scores.amax(-1)
    weights = (scores - top[..., None]).exp()
    return Partial((weights @ values).float(), top.float(), weights.sum(-1).float())


def test_merging_is_softmax_over_all_parts() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(5, 2, 30, generator=generator, dtype=torch.float64) * 20
    values = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    expected = scores.softmax(-1) @ values
    empty = Partial.empty(5, 2, 4, torch.device("cpu"))
    for cuts in ([0, 30], [0, 1, 30], [0, 7, 8, 29, 30]):
        parts = [partial_of(scores[..., a:b], values[a:b]) for a, b in pairwise(cuts)]
        for order in (parts, parts[::-1], [empty, *parts, empty]):
            merged = order[0]
            for part in order[1:]:
                merged = merge(merged, part)
            assert_close(finish(merged, None), expected)


def test_an_empty_part_changes_no_bit() -> None:
    scores = torch.randn(3, 2, 9, dtype=torch.float64)
    part = partial_of(scores, torch.randn(9, 4, dtype=torch.float64))
    empty = Partial.empty(3, 2, 4, torch.device("cpu"))
    for merged in (merge(part, empty), merge(empty, part)):
        assert torch.equal(merged.out, part.out)
        assert torch.equal(merged.top, part.top) and torch.equal(merged.total, part.total)


def test_nothing_is_zero_and_not_nan() -> None:
    empty = Partial.empty(3, 2, 4, torch.device("cpu"))
    nothing = merge(empty, empty)
    assert (finish(nothing, None) == 0).all()
    assert (finish(nothing, torch.tensor([0.0, 80.0])) == 0).all()


def test_lowest_visible() -> None:
    position = torch.tensor([0, 4, 5, 9])
    assert lowest_visible(position, None, None) is None
    assert lowest_visible(position, 5, None).tolist() == [0, 0, 1, 5]  # type: ignore[union-attr]
    assert lowest_visible(position, None, 5).tolist() == [0, 0, 5, 5]  # type: ignore[union-attr]


def test_store() -> None:
    k, v = torch.randn(3, 2, 4), torch.randn(3, 2, 6)
    k_cache, v_cache = torch.zeros(2, 4, 2, 4), torch.zeros(2, 4, 2, 6)
    store(k, v, k_cache, v_cache, torch.tensor([6, 0, 3]))
    for token, (block, offset) in enumerate([(1, 2), (0, 0), (0, 3)]):
        assert torch.equal(k_cache[block, offset], k[token])
        assert torch.equal(v_cache[block, offset], v[token])
    assert k_cache.count_nonzero() == 3 * 2 * 4 and v_cache.count_nonzero() == 3 * 2 * 6


# -- prefill ------------------------------------------------------------------------------------

NODES = [(50, 0, 3), (17, 1, 3)]
CHUNKS = [([0], 9), ([0, 1], 1), ([0, 1], 37), ([], 20)]


def check_prefill(
    shape: AttentionShape,
    nodes: list[tuple[int, int, int]],
    chunks: list[tuple[list[int], int]],
    scattered: bool = False,
    sinks: torch.Tensor | None = None,
    **options: object,
) -> None:
    """nodes, chunks: as `prompt_layout` takes them."""
    generator = torch.Generator().manual_seed(0)
    size = shape.block_size
    layout, starts = prompt_layout(nodes, chunks, size, scattered)

    def random(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator).to(DEVICE, shape.dtype)

    num_blocks = int(layout.block_start[-1]) + 2
    keys = random(num_blocks * size, shape.num_kv_heads, shape.key_size)
    values = random(num_blocks * size, shape.num_kv_heads, shape.value_size)
    slots_of = layout.blocks[:, None] * size + np.arange(size)
    node_slots = [
        slots_of[layout.block_start[i] : layout.block_start[i + 1]].ravel()[:length]
        for i, (length, _, _) in enumerate(nodes)
    ]
    unused = np.setdiff1d(np.arange(num_blocks * size), np.concatenate([*node_slots, []]))
    keys[unused], values[unused] = WRONG, WRONG
    q = random(int(starts[-1]), shape.num_heads, shape.key_size)
    k = random(int(starts[-1]), shape.num_kv_heads, shape.key_size)
    v = random(int(starts[-1]), shape.num_kv_heads, shape.value_size)
    prefix = [sum(nodes[j][0] for j in path) for path, _ in chunks]
    position = torch.cat([torch.arange(n) + p for p, (_, n) in zip(prefix, chunks, strict=True)])
    caches = (c.view(-1, size, *c.shape[1:]) for c in (keys, values))
    plan = ReferencePlan(layout, size, DEVICE)
    out = prefill_attention(
        q, k, v, *caches, plan, starts.tolist(), position.to(DEVICE), sinks=sinks, **options
    )
    for c, (path, length) in enumerate(chunks):
        slots = np.concatenate([np.zeros(0, int), *(node_slots[j] for j in path)])
        for t in range(starts[c], starts[c] + length):
            own = slice(starts[c], t + 1)
            expected = naive_row(
                q[t], torch.cat([keys[slots], k[own]]), torch.cat([values[slots], v[own]]),
                int(position[t]), sinks=sinks, **options,
            )  # fmt: skip
            assert_close(out[t], expected)


@each_dtype
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (5, 1)])
def test_prefill(heads: tuple[int, int], scattered: bool, dtype: torch.dtype) -> None:
    check_prefill(make_shape(*heads, dtype), NODES, CHUNKS, scattered, scale=0.125)


@each_dtype
def test_prefill_without_nodes(dtype: torch.dtype) -> None:
    check_prefill(make_shape(3, 3, dtype), [], [([], 1), ([], 40)], scale=0.125)


@each_dtype
@pytest.mark.parametrize("options", LIMITS, ids=str)
def test_prefill_limits(options: dict, dtype: torch.dtype) -> None:
    sinks = torch.tensor([-2.0, 0.0, 1.0, 5.0], device=DEVICE).to(dtype)
    check_prefill(make_shape(4, 2, dtype), NODES, CHUNKS, scale=0.125, sinks=sinks, **options)


@each_dtype
def test_prefill_with_unequal_sizes(dtype: torch.dtype) -> None:
    shape = make_shape(4, 2, dtype, key_size=24, value_size=40, block_size=3)
    check_prefill(shape, NODES, CHUNKS, scale=0.2)
