"""Attention over tiles of keys at absolute positions, in plain torch: the truth of `absolute.py`.

A row's sums go over whole tiles of TILE keys from position 0 on, one after the other, whoever
stored the keys and whatever is shared: its bits do not depend on the tree. The last tile is half
empty. A prompt's token and a drawn one are a row alike, so both have the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sharegen.kernels.layout import Int32, SharedLayout

TILE = 64
"""Keys of a tile."""


@dataclass(frozen=True)
class Paths:
    """Where the tokens above each row lie: those of all its nodes, in order of position.

    slots: flat, one list after the other, each above all rows under one last node.
    start: [num_rows] where a row's list begins.
    """

    slots: Tensor
    start: Tensor

    @classmethod
    def of(cls, layout: SharedLayout, num_rows: int, size: int, device: torch.device) -> Paths:
        """The paths of a batch's rows; size: of a block."""
        slots, start = listed_paths(layout, num_rows, size)
        return cls(torch.from_numpy(slots).to(device), torch.from_numpy(start).to(device))


def listed_paths(layout: SharedLayout, num_rows: int, size: int) -> tuple[Int32, Int32]:
    """Slots and starts of `Paths`, on the host."""
    above: list[list[int]] = [[] for _ in range(num_rows)]
    for node in range(layout.num_nodes):
        for row in layout.order[layout.row_start[node] : layout.row_end[node]]:
            above[row].append(node)
    starts: dict[tuple[int, ...], int] = {}
    lists: list[Int32] = []
    begin = 0
    first = np.zeros(num_rows, np.int32)
    for row, nodes in enumerate(above):
        path = tuple(nodes)
        if path not in starts:
            starts[path] = begin
            for node in path:
                lists.append(_slots_of(layout, node, size))
                begin += len(lists[-1])
        first[row] = starts[path]
    return np.concatenate([np.zeros(0, np.int32), *lists]).astype(np.int32), first


def _slots_of(layout: SharedLayout, node: int, size: int) -> Int32:
    length = int(layout.length[node])
    blocks = layout.blocks[layout.block_start[node] : layout.block_start[node + 1]]
    token = np.arange(length, dtype=np.int32)
    if layout.contiguous[node]:
        return blocks[0] * size + token
    return blocks[token // size] * size + token % size


def decode_slots(
    paths: Paths, block_tables: Tensor, prefix_length: Tensor, position: Tensor, size: int
) -> Tensor:
    """[rows, whole tiles] int64: where each row's tokens lie, by position; -1 beyond its own."""
    longest = int(position.max()) + 1 if len(position) else 0
    width = -(-longest // TILE) * TILE
    token = torch.arange(width, device=position.device)[None, :]
    above = paths.start[: len(position), None].long() + token
    is_above = token < prefix_length[:, None]
    from_above = _looked_up(paths.slots, above, is_above)
    own = (token - prefix_length[:, None]).clamp(min=0)
    is_own = ~is_above & (token <= position[:, None])
    block = block_tables.long().gather(1, (own // size).clamp(max=block_tables.shape[1] - 1))
    slots = torch.where(is_above, from_above, block * size + own % size)
    return torch.where(is_above | is_own, slots, -1)


def prefill_slots(
    paths: Paths, chunk_starts: Sequence[int], position: Tensor, slots: Tensor
) -> Tensor:
    """`decode_slots` of a prefill batch's tokens, which go to `slots` [T]."""
    longest = int(position.max()) + 1 if len(position) else 0
    width = -(-longest // TILE) * TILE
    token = torch.arange(width, device=position.device)[None, :]
    starts = torch.as_tensor(chunk_starts, device=position.device)
    row = torch.arange(len(position), device=position.device)
    chunk = torch.searchsorted(starts, row, right=True) - 1
    first = starts[chunk.clamp(max=len(starts) - 2)]
    prefix = position[first][:, None]
    is_above = token < prefix
    from_above = _looked_up(paths.slots, paths.start[row, None].long() + token, is_above)
    is_own = ~is_above & (token <= position[:, None])
    own = _looked_up(slots, first[:, None] + token - prefix, is_own)
    return torch.where(is_above, from_above, torch.where(is_own, own, -1))


def _looked_up(numbers: Tensor, index: Tensor, real: Tensor) -> Tensor:
    if not len(numbers):
        return torch.full_like(index, -1)
    return numbers.long()[torch.where(real, index, 0)]


def absolute_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, *, scale: float,
    softcap: float | None = None,
) -> Tensor:  # fmt: skip
    """Attend from rows q [rows, num_heads, key_size] to the keys in `slots` [rows, width].

    Returns [rows, num_heads, value_size].
    """
    rows, heads, _ = q.shape
    kv_heads = k_cache.shape[2]
    keys, values = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    lines = q.view(rows, kv_heads, heads // kv_heads, -1)
    out = q.new_zeros(rows, kv_heads, heads // kv_heads, values.shape[-1], dtype=torch.float32)
    m = out.new_full(out.shape[:-1], -math.inf)
    total = out.new_zeros(out.shape[:-1])
    for begin in range(0, slots.shape[1], TILE):
        tile = slots[:, begin : begin + TILE]
        seen = tile >= 0
        at = tile.clamp(min=0)
        k = torch.where(seen[..., None, None], keys[at], 0).transpose(1, 2)
        v = torch.where(seen[..., None, None], values[at], 0).transpose(1, 2)
        s = _products(lines, k) * scale
        if softcap is not None:
            s = torch.tanh(s / softcap) * softcap
        s = s.masked_fill(~seen[:, None, None, :], -math.inf)
        new = torch.maximum(m, s.amax(-1))
        shift = torch.where(new == -math.inf, 0.0, new)
        p = torch.exp(s - shift[..., None])
        decay = torch.exp(m - shift)
        total = total * decay + _in_pairs(p)
        out = out * decay[..., None] + _products(p.to(v.dtype), v.transpose(2, 3))
        m = new
    out = out / torch.where(total == 0, 1.0, total)[..., None]
    return out.flatten(1, 2).to(q.dtype)


def _products(x: Tensor, y: Tensor) -> Tensor:
    """x [rows, kv_heads, M, D] by y [rows, kv_heads, N, D], of which each row has its own."""
    return torch.matmul(x.float(), y.float().transpose(2, 3))


def _in_pairs(p: Tensor) -> Tensor:
    """The sums of the last dimension, a power of two: neighbours first, then neighbouring sums."""
    while p.shape[-1] > 1:
        p = p[..., 0::2] + p[..., 1::2]
    return p[..., 0]
