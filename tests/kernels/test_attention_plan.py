"""The work list: every (row, token) pair exactly once, and a row's partials side by side."""

from __future__ import annotations

import itertools
import timeit
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sharegen.kernels.attention_plan import AttentionPlan, work_list
from sharegen.kernels.cost import CostModel
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.tiles import AttentionShape, Tile, beside_tile, many_tile
from tests.kernels.trees import DEVICE, make_shape

TILE = Tile(lines=32, keys=16, num_warps=4, num_stages=2)
ALL_SHARED = np.zeros(1, bool)  # of one node


def layout_of(
    nodes: list[tuple[int, int, int]], num_rows: int, order: np.ndarray | None = None
) -> SharedLayout:
    """nodes: (length, first row, end row), parents first; blocks of 16 tokens in sequence."""
    blocks = [-(-length // 16) for length, _, _ in nodes]
    starts = np.cumsum([0, *blocks]).astype(np.int32)
    return SharedLayout(
        order=np.arange(num_rows, dtype=np.int32) if order is None else order,
        length=np.array([n[0] for n in nodes], np.int32),
        position=np.zeros(len(nodes), np.int32),
        level=np.zeros(len(nodes), np.int32),
        row_start=np.array([n[1] for n in nodes], np.int32),
        row_end=np.array([n[2] for n in nodes], np.int32),
        block_start=starts,
        blocks=np.arange(starts[-1], dtype=np.int32),
        contiguous=np.ones(len(nodes), bool),
        fp8=np.zeros(len(nodes), bool),
    )


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], int]:
    """Nested slices of rows with lengths, parents first, level by level."""
    num_rows = draw(st.integers(1, 70))
    nodes: list[tuple[int, int, int]] = []
    level = [(0, num_rows)]
    for _ in range(draw(st.integers(0, 4))):
        below = []
        for first, end in level:
            cuts = draw(st.lists(st.integers(first, end), max_size=3).map(sorted))
            edges = [first, *cuts, end]
            for a, b in itertools.pairwise(edges):
                if a < b and draw(st.booleans()):
                    nodes.append((draw(st.integers(1, 300)), a, b))
                    below.append((a, b))
        level = below
    return nodes, num_rows


@settings(max_examples=60, deadline=None)
@given(trees(), st.sampled_from([1, 2, 5, 8]), st.sampled_from([1, 8, 500]), st.randoms())
def test_covers_each_pair_once(tree, group, slots, random) -> None:
    """In the shared phase or as an unshared node of the row, whichever was chosen for the node."""
    nodes, num_rows = tree
    order = np.array(random.sample(range(num_rows + 3), num_rows), np.int32)
    layout = layout_of(nodes, num_rows, order)
    shape = make_shape(2 * group, 2, torch.float32)
    unshared = np.array([random.random() < 0.4 for _ in nodes], bool)
    work = work_list(layout, shape, num_rows + 3, TILE, slots, unshared)

    rows_per_tile = TILE.lines // group
    written = set()
    seen = {}
    for i, item in enumerate(work.items.tolist()):
        first, ordinal, begin_segments, end_segments, first_of_run, run = item
        assert first_of_run <= i < first_of_run + run
        assert work.items[first_of_run, 4:].tolist() == [first_of_run, run]
        window = order[first : first + rows_per_tile].tolist()
        for row in window:
            slot = work.partial_start[row] + ordinal
            assert slot < work.partial_start[row + 1] and slot not in written
            written.add(slot)
        assert begin_segments < end_segments
        for segment in work.segments[begin_segments:end_segments].tolist():
            row_begin, row_end, begin, end, _, block, contiguous, _ = segment
            assert contiguous and begin < end and begin % TILE.keys == 0
            for row in window[max(row_begin, 0) : row_end]:
                seen.setdefault(row, []).extend(range(block * 16 + begin, block * 16 + end))
    assert len(written) == work.partial_start[-1]
    for row in range(num_rows + 3):
        own = work.unshared_nodes[work.unshared_start[row] : work.unshared_start[row + 1]]
        for length, _, block, contiguous in own.tolist():
            assert contiguous
            seen.setdefault(row, []).extend(range(block * 16, block * 16 + length))
    assert work.unshared_start[-1] == len(work.unshared_nodes)
    for i, row in enumerate(order.tolist()):
        wanted = [
            layout.block_start[n] * 16 + t
            for n, (length, a, b) in enumerate(nodes)
            if a <= i < b
            for t in range(length)
        ]
        assert sorted(seen.get(row, [])) == sorted(wanted)


def test_longest_first() -> None:
    work = work_list(
        layout_of([(100, 0, 40), (300, 0, 10), (40, 10, 40)], 40),
        make_shape(2, 2, torch.float32), 40, TILE, slots=2, unshared=np.zeros(3, bool),
    )  # fmt: skip
    tokens = work.segments[:, 3] - work.segments[:, 2]
    lengths = [tokens[begin:end].sum() for begin, end in work.items[:, 2:4]]
    assert (np.diff(lengths) <= 0).all()


def test_items_of_a_run_read_the_same_keys() -> None:
    """Three windows and the parts of a long node: what they have in common comes together."""
    work = work_list(
        layout_of([(640, 0, 96)], 96), make_shape(2, 2, torch.float32), 96, TILE, 12, ALL_SHARED
    )
    begins = work.segments[work.items[:, 2], 2]
    assert len(set(begins.tolist())) == len(begins) / 3 > 1
    assert (work.items[:, 5] == 3).all()
    assert (begins == begins[work.items[:, 4]]).all()


def test_splits_only_when_there_are_too_few_items() -> None:
    shape = make_shape(32, 32, torch.float16, key_size=128, value_size=128)
    tile = Tile(64, 64, 4, 3)
    few = work_list(layout_of([(8192, 0, 32)], 32), shape, 32, tile, 264, ALL_SHARED)
    assert len(few.items) >= 4
    many = work_list(layout_of([(8192, 0, 4096)], 4096), shape, 4096, tile, 264, ALL_SHARED)
    assert len(many.items) == 64


def test_says_when_buffers_grow() -> None:
    plan = AttentionPlan(make_shape(4, 2, torch.float32), 64, DEVICE, tile=TILE)
    plan.slots = 8  # few enough that no node is split
    plan.update(layout_of([(100, 0, 64)], 64))
    assert plan.generation == 0
    deep = layout_of([(20, 0, 64)] * 200, 64)
    plan.update(deep)
    assert plan.generation == 1
    plan.update(deep)
    assert plan.generation == 1
    none = np.zeros(200, bool)
    assert plan.counts[0] == len(work_list(deep, plan.shape, 64, TILE, plan.slots, none).items)


@pytest.mark.parametrize("allocate", ["zeros", "empty"])
def test_buffers_for_which_there_was_no_memory_are_made_again(
    allocate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of the new buffers are there, some are the old ones: nothing may be written to those."""
    plan = AttentionPlan(make_shape(4, 2, torch.float32), 64, DEVICE, tile=TILE)
    plan.slots = 8
    deep, flat = layout_of([(20, 0, 64)] * 200, 64), layout_of([(100, 0, 64)], 64)

    def no_memory(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
        patch.setattr(torch, allocate, no_memory)
        plan.update(deep)
    for layout in (flat, deep):
        plan.update(layout)
        assert plan.generation == 1
        unshared = np.zeros(layout.num_nodes, bool)
        work = work_list(layout, plan.shape, 64, TILE, plan.slots, unshared)
        assert plan.counts.tolist()[:2] == [len(work.items), 64]
        assert plan.segments[: work.segments.size].tolist() == work.segments.ravel().tolist()
        assert len(plan.partial_out) == len(plan.partial_lse) >= work.partial_start[-1]


def test_tile_follows_the_length_of_what_is_shared() -> None:
    """The tile changes, and says so, but not for small changes around the border."""
    shape = AttentionShape(32, 8, 128, 128, 16, torch.float16)
    plan = AttentionPlan(shape, 2048, DEVICE)  # room for as many partials as any device wants
    short = plan.variant
    plan.update(layout_of([(1024, 0, 64)], 64))
    assert plan.variant == short
    plan.update(layout_of([(8192, 0, 64)], 64))
    long = plan.variant
    assert long != short
    plan.update(layout_of([(4096, 0, 64)], 64))
    assert plan.variant == long
    plan.update(layout_of([(2048, 0, 64)], 64))
    assert plan.variant == short and plan.generation == 0


def test_tile_follows_the_rows() -> None:
    """Many rows take larger tiles, and the last ones of a job the same."""
    shape = AttentionShape(32, 8, 128, 128, 16, torch.float16)
    plan = AttentionPlan(shape, 1024, DEVICE)
    limit = plan.shared_memory
    few, many = beside_tile(shape, limit), many_tile(shape, limit, long=False)
    for rows, tile in ((255, few), (256, many), (1, many)):
        plan.update(layout_of([(1024, 0, rows)], rows))
        assert plan.tile == tile
    plan.update(layout_of([(8192, 0, 1)], 1))
    assert plan.tile == many_tile(shape, limit, long=True)


def test_shares_from_the_first_node_on_that_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = "sharegen.kernels.attention_plan.resident_programs"
    monkeypatch.setattr(programs, lambda *_: 264)  # a GPU's
    plan = AttentionPlan(
        AttentionShape(32, 8, 128, 128, 16, torch.float16), 64, DEVICE, costs=CostModel()
    )
    alone = layout_of([(512, row, row + 1) for row in range(64)], 64)
    together = layout_of([(8192, 0, 64)], 64)
    plan.update(alone)
    assert not plan.sharing and plan.shared_levels == () and plan.counts[0] == 0
    plan.update(together)
    assert plan.sharing and plan.shared_levels == (0,) and plan.counts[0] > 0
    plan.update(alone)  # no new graph for what may be the last rows of a job
    assert plan.sharing and plan.shared_levels == () and plan.counts[0] > 0


def test_of_rows_that_arrive_each_number_has_one_variant_in_the_buffers_that_there_are() -> None:
    """Whatever came before: a graph that is captured at a server's start serves ever after."""
    shape = make_shape(8, 2, torch.float16)
    plan = AttentionPlan(shape, 512, DEVICE, costs=CostModel(), arriving=True)
    plain = AttentionPlan(shape, 512, DEVICE, costs=CostModel())

    def of(rows: int, own: int, head: int) -> SharedLayout:
        nodes = [(head, 0, rows), *((own, row, row + 1) for row in range(rows))]
        layout = layout_of(nodes, rows)
        return replace(layout, contiguous=np.zeros(len(nodes), bool))  # as blocks are after a while

    variants: dict[int, set[object]] = {}
    seen: dict[int, set[object]] = {}
    loads = [(4, 16, 16), (512, 30, 999), (300, 1, 50), (4, 16, 2000), (512, 1, 1)]
    for rows, own, head in loads:
        plan.update(of(rows, own, head))
        plain.update(of(rows, own, head))
        variants.setdefault(rows, set()).add(plan.variant)
        seen.setdefault(rows, set()).add((plain.generation, plain.variant))
    assert [len(found) for found in variants.values()] == [1, 1, 1]
    assert variants[4] != variants[512]  # another tile
    assert plan.generation == 0
    assert plain.generation > 0 and max(map(len, seen.values())) == 2


def test_refuses_more_rows_than_it_has_room_for() -> None:
    plan = AttentionPlan(make_shape(4, 2, torch.float32), 8, DEVICE, tile=TILE)
    with pytest.raises(IndexError):
        plan.update(layout_of([(100, 0, 9)], 9))


def test_builds_within_a_millisecond() -> None:
    """On a core that squares ten thousand numbers in a third of one."""
    nodes = [(1024, 0, 1040)] + [(112, 40 * i, 40 * i + 40) for i in range(26)]
    layout = layout_of(nodes, 1040, np.random.default_rng(0).permutation(1040).astype(np.int32))
    shape = AttentionShape(32, 8, 128, 128, 16, torch.bfloat16)
    plan = AttentionPlan(shape, 1040, torch.device("cpu"), costs=CostModel())
    builds, squares = [], []
    for _ in range(30):
        builds += timeit.repeat(lambda: plan.update(layout), number=1, repeat=2)
        squares += timeit.repeat("[i * i for i in range(10_000)]", number=1, repeat=2)
    assert min(builds) < 3 * min(squares)


def _tree(random: np.random.Generator, leaves: int) -> list[list[tuple[int, int, bool]]]:
    """Paths of (position, length, whether one sample alone reads it), which share their beginnings
    like prompts do: a node is named by where it is and how long, so lengths never repeat."""
    lengths = iter(random.permutation(np.arange(20, 3000)).tolist())
    roots = [(0, next(lengths), False) for _ in range(2)]
    paths = []
    below: dict[tuple[int, int, bool], list[tuple[int, int, bool]]] = {}
    for leaf in range(leaves):
        path = [roots[leaf % 2]]
        if leaf % 3:
            middle = below.setdefault(path[0], [])
            if len(middle) < 2:
                middle.append((path[0][1], next(lengths), False))
            path.append(middle[leaf % len(middle)])
        path.append((path[-1][0] + path[-1][1], next(lengths) % 200 + 1 + leaf, leaf % 4 == 0))
        paths.append(path)
    return paths


def _batch(paths: list[list[tuple[int, int, bool]]], rows: list[int]) -> SharedLayout:
    """The layout of a batch whose rows, in tree order, end at these paths."""
    spans: dict[tuple[tuple[int, int, bool], ...], list[int]] = {}
    for row, leaf in enumerate(rows):
        for depth in range(len(paths[leaf])):
            span = spans.setdefault(tuple(paths[leaf][: depth + 1]), [row, row])
            span[1] = row + 1
    nodes = sorted(spans.items(), key=lambda item: (len(item[0]), item[1]))
    layout = layout_of([(path[-1][1], *span) for path, span in nodes], len(rows))
    return replace(
        layout,
        position=np.array([path[-1][0] for path, _ in nodes], np.int32),
        alone=np.array([path[-1][2] for path, _ in nodes], bool),
    )


def _read(layout: SharedLayout, tile: Tile, shape: AttentionShape) -> list[object]:
    """For each row: its partials in order, each as the tiles that it reads, but for empty ones, and
    its unshared nodes."""
    assert layout.alone is not None
    work = work_list(layout, shape, len(layout.order), tile, None, layout.alone)
    partials: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for first_row, ordinal, first, last, *_ in work.items.tolist():
        assert first < last, "an item reads something"
        for row in range(first_row, min(first_row + tile.lines // shape.group, len(layout.order))):
            place = int(work.partial_start[row]) + ordinal
            assert place < work.partial_start[row + 1] and (row, place) not in partials
            partials[row, place] = [
                (position + n, min(n + tile.keys, end) - n)
                for start, stop, begin, end, position, *_ in work.segments[first:last].tolist()
                if start <= row - first_row < stop
                for n in range(begin, end, tile.keys)
            ]
    unshared = [
        work.unshared_nodes[a:b, :2].tolist() for a, b in itertools.pairwise(work.unshared_start)
    ]
    return [
        ([tiles for (at, _), tiles in sorted(partials.items()) if at == row and tiles], alone)
        for row, alone in enumerate(unshared)
    ]


@pytest.mark.turn(6)
@given(st.integers(0, 1 << 32), st.integers(1, 9), st.data())
@settings(max_examples=60, deadline=None)
def test_a_deterministic_plan_reads_for_a_row_what_the_tree_says(
    seed: int, leaves: int, data: st.DataObject
) -> None:
    """Whatever runs beside it: the same partials of the same tiles in the same order."""
    paths = _tree(np.random.default_rng(seed), leaves)
    in_order = sorted(range(leaves), key=lambda leaf: paths[leaf])
    counts = st.lists(st.integers(0, 40), min_size=leaves, max_size=leaves)
    seen: dict[int, object] = {}
    for _ in range(3):
        many = data.draw(counts)
        rows = [leaf for leaf in in_order for _ in range(many[leaf])]
        if not rows:
            continue
        shape = make_shape(4, 2, torch.float32)
        for leaf, read in zip(rows, _read(_batch(paths, rows), TILE, shape), strict=True):
            assert seen.setdefault(leaf, read) == read
            tokens = sum(count for part in read[0] for _, count in part)  # type: ignore[index]
            assert tokens + sum(n for n, _ in read[1]) == sum(node[1] for node in paths[leaf])  # type: ignore[index]
