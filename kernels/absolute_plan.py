"""What the launches of `absolute.py` read: items of each level of the tree, and paths of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from sharegen.kernels.attention_plan import Staging
from sharegen.kernels.layout import Int32, SharedLayout
from sharegen.kernels.reference_absolute import TILE, Paths, listed_paths
from sharegen.kernels.transfer import send

LINES = 128
"""Of the band of an item, at most."""

FIELDS = 6
"""Of an item: its first row in `rows`, how many, where their path begins, the first key, the end of
the keys, and whether the slots of these follow each other."""

_ALIGNMENT = 4  # int32s: a launch finds each array at 16 bytes


class Items(NamedTuple):
    """What a launch computes: listed [room, 5] int32, of which the first `number` [1] are items."""

    number: torch.Tensor
    listed: torch.Tensor


@dataclass(frozen=True)
class AbsolutePlan:
    """What a batch's rows read together, level by level, and how they find the rest.

    paths: where what is above rows lies. levels: of each launch before the last. rows: in tree
    order. last: of the last launch, or None where each row reads its own blocks.
    """

    paths: Paths
    levels: Sequence[Items]
    rows: torch.Tensor
    last: Items | None


class DecodingPlan:
    """The plan of decoding steps, in buffers that stay where they are while what they hold changes.

    So a captured step reads the new plan. `generation` grows where a buffer was too small.

    Args:
        group: query heads for each KV head.
        block_size: of the KV cache.
        max_rows: the most rows of a step.
        device: where the buffers lie.
    """

    def __init__(self, group: int, block_size: int, max_rows: int, device: torch.device) -> None:
        self._group, self._block_size, self._max_rows = group, block_size, max_rows
        self._device = device
        self.generation = 0
        self._room = (0, 0, 0)
        self._grow((1, 2 * -(-max_rows * group // LINES), 64 * max_rows))

    def update(self, layout: SharedLayout) -> None:
        """Send the plan of a layout, on the stream of the steps."""
        slots, start = listed_paths(layout, self._max_rows, self._block_size)
        levels = _levels(layout, start, self._group)
        self._grow((len(levels), max(map(len, levels), default=0), len(slots)))
        staging = self._staging.next()
        counts, of_start, of_rows, of_slots = self._spans[:4]
        staging[counts] = 0
        staging[of_start] = start
        staging[of_rows][: len(layout.order)] = layout.order
        staging[of_slots][: len(slots)] = slots
        for i, items in enumerate(levels):
            staging[i] = len(items)
            staging[self._spans[4 + i]][: len(items) * FIELDS] = np.ravel(items)
        self._staging.send(self._buffer)

    def _grow(self, asked: tuple[int, int, int]) -> None:
        if all(a <= r for a, r in zip(asked, self._room, strict=True)):
            return
        self._room = tuple(  # type: ignore[assignment]
            r if a <= r else max(a, r + r // 2) for a, r in zip(asked, self._room, strict=True)
        )
        levels, items, slots = self._room
        sizes = [levels, self._max_rows, self._max_rows, slots, *[items * FIELDS] * levels]
        ends = np.cumsum([-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes])
        starts = (int(end) for end in [0, *ends[:-1]])
        self._spans = [slice(at, at + size) for at, size in zip(starts, sizes, strict=True)]
        self._buffer = torch.zeros(int(ends[-1]), dtype=torch.int32, device=self._device)
        self._staging = Staging(len(self._buffer), self._device)
        counts, start, rows, paths, *listed = (self._buffer[span] for span in self._spans)
        of_levels = [
            Items(counts[i : i + 1], each.view(items, FIELDS)) for i, each in enumerate(listed)
        ]
        self.plan = AbsolutePlan(Paths(paths, start), of_levels, rows, None)
        self.generation += 1


def _levels(layout: SharedLayout, start: Int32, group: int) -> list[list[tuple[int, ...]]]:
    """The items of each level of the tree, which read a node's whole tiles: first of all those of
    nodes at position 0, of which there may be none.

    start: where each row's path begins.
    """
    most = max(1, LINES // group)
    by_level: dict[int, list[tuple[int, ...]]] = {-1: []}
    for node in range(layout.num_nodes):
        first, last = int(layout.row_start[node]), int(layout.row_end[node])
        begin = int(layout.position[node]) // TILE * TILE
        end = int(layout.position[node] + layout.length[node]) // TILE * TILE
        if begin == end:
            continue
        level = int(layout.level[node]) if layout.position[node] else -1
        items, in_a_run = by_level.setdefault(level, []), int(layout.contiguous[node])
        for i in range(first, last, most):
            path = int(start[layout.order[i]])
            items.append((i, min(most, last - i), path, begin, end, in_a_run))
    return [by_level[level] for level in sorted(by_level)]


def prefill_plan(
    layout: SharedLayout,
    chunk_starts: Sequence[int],
    slots: torch.Tensor,
    group: int,
    block_size: int,
) -> AbsolutePlan:
    """The plan of a prefill batch of chunks, whose tokens go to the slots [T].

    group: query heads for each KV head. The chunks' own tokens lie at the end of paths of their
    own.
    """
    device, num_rows = slots.device, chunk_starts[-1]
    above_slots, start = listed_paths(layout, num_rows, block_size)
    levels = _levels(layout, start, group)
    above = np.zeros(num_rows, np.int32)
    for node in range(layout.num_nodes):
        below = layout.order[layout.row_start[node] : layout.row_end[node]]
        above[below] = np.maximum(above[below], layout.position[node] + layout.length[node])
    most = max(1, LINES // group)
    # Tokens of the batch are named by numbers below 0, until their slots take the place of these.
    parts, length = [above_slots], len(above_slots)
    items: list[tuple[int, ...]] = []
    for first, end in pairwise(chunk_starts):
        prefix, path = int(above[first]), int(start[first])
        parts += [above_slots[path : path + prefix], -1 - np.arange(first, end, dtype=np.int32)]
        for i in range(first, end, most):
            count = min(most, end - i)
            begin = prefix // TILE * TILE
            items.append((num_rows + i, count, length, begin, prefix + i + count - first, 0))
        length += prefix + end - first
    rows = np.zeros(2 * num_rows, np.int32)
    rows[: len(layout.order)] = layout.order
    rows[num_rows:] = np.arange(num_rows)
    lists = [np.array(each, np.int32).reshape(-1, FIELDS) for each in (*levels, items)]
    counts = np.array([[len(each)] for each in lists], np.int32)
    paths, starts, of_rows, numbers, *listed = send(
        device, np.concatenate(parts).astype(np.int32), start, rows, counts, *lists
    )
    own = (-1 - paths).clamp(min=0).long()
    paths = torch.where(paths < 0, slots.to(torch.int32)[own], paths)
    launches = list(map(Items, numbers.unbind(), listed))
    return AbsolutePlan(Paths(paths, starts), launches[:-1], of_rows, launches[-1])
