"""Exact shared-prefix attention in plain torch: the ground truth, and the path without a GPU.

softmax(q K^T) V over a row's whole context equals the parts over its shared nodes and over its own
tokens, each with its maximum and its sum, merged (Hydragen, section 3.1, equations 2-5). Every
shared node is one matrix product with the queries of all rows under it (section 3.2;
ChunkAttention's chunk-first phase), and its keys and values are read once.

Rows are taken in tree order, so that a node's rows are a slice. A row sees keys from
`lowest[row]` to its own position (windows and chunks). Sinks enter once, at the end.

The arithmetic of a row depends neither on the other rows nor on how many there are: suffixes are
read in steps of fixed width, products are padded (a BLAS takes other paths for few or odd rows),
and a level of the tree that a row does not have adds an exact zero.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from sharegen.kernels.dense import dense_each, dense_one
from sharegen.kernels.fp8_blocks import (
    NAN,
    FP8Blocks,
    from_fp8,
    largest_value,
    least_exponent,
    to_fp8,
)
from sharegen.kernels.latents import Latents
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.partial import Partial, finish, merge

_SUFFIX_STEP = 32  # suffix tokens read at once


@dataclass(frozen=True)
class Node:
    level: int
    rows: slice  # of the rows in tree order
    length: int  # keys
    slots: Tensor | slice  # where the keys lie
    blocks: npt.NDArray[np.int32]  # that hold them
    position: int  # absolute position of the first key
    fp8: bool  # whether these are FP8 blocks


class ReferencePlan:
    """A SharedLayout with its indices as tensors, made once a batch and used by every layer.

    order: [live rows] the batch's rows in tree order.
    """

    def __init__(self, layout: SharedLayout, block_size: int, device: torch.device) -> None:
        self.order = torch.from_numpy(layout.order).to(device, torch.int64)
        self.nodes: list[Node] = []
        offsets = torch.arange(block_size, device=device)
        above: list[int] = []  # where the rows of the open nodes end
        for i in range(layout.num_nodes):
            start, end = int(layout.row_start[i]), int(layout.row_end[i])
            while above and above[-1] <= start:
                above.pop()
            blocks = layout.blocks[layout.block_start[i] : layout.block_start[i + 1]]
            length = int(layout.length[i])
            needed = -(-length // block_size)  # of a node that is read in part
            slots: Tensor | slice
            position, fp8 = int(layout.position[i]), bool(layout.fp8[i])
            if layout.contiguous[i]:
                block = int(blocks[0])
                blocks = np.arange(block, block + needed, dtype=np.int32)
                first = block * block_size
                slots = slice(first, first + length)
                if fp8:
                    slots = torch.arange(first, first + length, device=device)
            else:
                blocks = blocks[:needed]
                table = torch.from_numpy(blocks).to(device, torch.int64)
                slots = (table[:, None] * block_size + offsets).flatten()[:length]
            rows = slice(start, end)
            self.nodes.append(Node(len(above), rows, length, slots, blocks, position, fp8))
            above.append(end)
        self.num_levels = max((node.level + 1 for node in self.nodes), default=0)

    def level(self, level: int) -> list[Node]:
        return [node for node in self.nodes if node.level == level]

    def by_level(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        fp8: FP8Blocks | Latents | None,
        lowest: Tensor | None,
        softcap: float | None,
    ) -> list[Partial]:
        """Attend from all rows to the shared nodes of each level.

        q: [rows, num_heads, key_size] in tree order, scaled. lowest: see lowest_visible.
        """
        of_levels = []
        for level in range(self.num_levels):
            part = Partial.empty(len(q), q.shape[1], v_cache.shape[-1], q.device)
            for node in self.level(level):
                part[node.rows] = one_node(q, k_cache, v_cache, fp8, node, lowest, softcap)
            of_levels.append(part)
        return of_levels

    def causal(self, q: Tensor, k: Tensor, v: Tensor, softcap: float | None) -> Partial:
        """Attend from rows q [T, num_heads, D], scaled, to the keys k [T, num_kv_heads, D] to their
        own.

        v: [T, num_kv_heads, *].
        """
        visible = torch.ones(len(q), len(q), dtype=torch.bool, device=q.device).tril()
        return dense_one(q, k, v, visible, softcap)


@dataclass(frozen=True)
class _SuffixStep:
    rows: Tensor | slice  # of the rows in tree order
    blocks: Tensor  # [rows * blocks read] flat
    position: Tensor  # [rows] absolute position of the first key
    seen: Tensor  # [rows] how many of the keys the row has


class SuffixPlan:
    """Which suffix blocks are read together in this step; made once and used by every layer.

    Args:
        plan: the nodes above the rows, and the rows in tree order.
        block_size: tokens of a block.
        block_tables: [rows, max_blocks].
        prefix_length: [rows], tokens above the row's own.
        position: [rows], of the query. A dead row has position = prefix_length - 1 and is not in
            the order.
    """

    def __init__(
        self,
        plan: ReferencePlan,
        block_size: int,
        block_tables: Tensor,
        prefix_length: Tensor,
        position: Tensor,
    ) -> None:
        tables, prefix = block_tables[plan.order], prefix_length[plan.order]
        self.position = position[plan.order]
        length = self.position - prefix + 1
        width = max(1, _SUFFIX_STEP // block_size)  # blocks
        self.num_keys = width * block_size
        self.steps: list[_SuffixStep] = []
        longest = int(length.max()) if len(length) else 0
        for first in range(0, -(-longest // block_size), width):
            begin = first * block_size
            live = (length > begin).nonzero()[:, 0]
            rows: Tensor | slice = slice(0, len(length)) if len(live) == len(length) else live
            blocks = tables[rows, first : first + width]
            blocks = pad(blocks, (0, width - blocks.shape[1]))
            seen = length[rows] - begin
            self.steps.append(_SuffixStep(rows, blocks.flatten(), prefix[rows] + begin, seen))


def lowest_visible(
    position: Tensor, window: int | None, attention_chunk: int | None
) -> Tensor | None:
    """[rows] the first position that each row may see; None when it is 0 for all.

    window: a row at p sees the last `window` positions, its own included. attention_chunk: it sees
    from the start of its chunk of so many positions.
    """
    if window is not None:
        return (position - window + 1).clamp(min=0)
    if attention_chunk is not None:
        return position // attention_chunk * attention_chunk
    return None


def store(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Put keys and values k, v [T, num_kv_heads, *] into slots [T] of the caches [blocks, block,
    heads, *].

    A row with a negative slot is left out. Values in the cache are finite: one that is not becomes
    0 and its key NaN, which rows that see the token get as their result, while others mask it (a
    masked value is still multiplied by 0).
    """
    k, v, slots = _stored(k, v, slots)
    if v.is_cuda or not v.sum(dtype=torch.float32).isfinite():
        finite = v.isfinite().all(-1, keepdim=True)
        k, v = k.where(finite, torch.nan), v.where(finite, 0.0)
    k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, slots, v)


def store_fp8(k: Tensor, v: Tensor, cache: FP8Blocks, slots: Tensor) -> None:
    """Do what `store` does for slots of FP8 blocks; a key that is not finite is NaN there, too."""
    k, v, slots = _stored(k, v, slots)
    finite = k.isfinite().all(-1, keepdim=True) & v.isfinite().all(-1, keepdim=True)
    least, largest = least_exponent(k.dtype), largest_value(v.dtype)
    keys, k_exponents = to_fp8(k.where(finite, 0.0), least)
    values, v_exponents = to_fp8(v.where(finite, 0.0).clamp(-largest, largest), least)
    k_exponents = k_exponents.masked_fill(~finite[..., 0], NAN)
    for blocks, numbers in ((cache.keys, keys), (cache.values, values)):
        flat = blocks.view(torch.uint8).view(-1, *blocks.shape[2:])
        flat.index_copy_(0, slots, numbers.view(torch.uint8))
    block, offset = slots // cache.keys.shape[1], slots % cache.keys.shape[1]
    cache.exponents[block, :, :, offset] = torch.stack([k_exponents, v_exponents], dim=-1)


def _stored(k: Tensor, v: Tensor, slots: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows that have a slot."""
    has = slots >= 0
    return (k, v, slots) if has.all() else (k[has], v[has], slots[has])


def read_fp8(cache: FP8Blocks, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Read keys and values [T, num_kv_heads, *] float32 of slots [T] of FP8 blocks."""
    size = cache.keys.shape[1]
    exponents = cache.exponents[slots // size, :, :, slots % size]
    keys, values = (
        from_fp8(
            blocks.view(torch.uint8).flatten(0, 1)[slots].view(blocks.dtype), exponents[..., i]
        )
        for i, blocks in enumerate((cache.keys, cache.values))
    )
    return keys, values


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: ReferencePlan,
    suffix: SuffixPlan,
    *,
    fp8: FP8Blocks | None = None,
    scale: float,
    window: int | None = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute a decoding step: each row attends to the nodes above it and to its own suffix.

    Args:
        q: [rows, num_heads, key_size].
        k_cache, v_cache: [blocks, block_size, num_kv_heads, *], with the step's keys and values.
        plan: the nodes above the rows.
        suffix: each row's own tokens.
        fp8: the FP8 blocks, where suffixes and the nodes that are marked so lie in these.
        scale: multiplies the scores.
        window: keys that a query sees at most, its own included; None for all.
        attention_chunk: length of the chunks within which queries see keys; None for none.
        softcap: limit of the scores, where the model has one.
        sinks: [num_heads], one more logit without a value.

    Returns:
        [rows, num_heads, value_size]; rows that are not in the plan's order get 0.
    """
    ordered = q[plan.order].float() * scale
    lowest = lowest_visible(suffix.position, window, attention_chunk)
    partial = _shared(ordered, k_cache, v_cache, fp8, plan, lowest, softcap)
    partial = _suffix(ordered, k_cache, v_cache, fp8, suffix, lowest, softcap, partial)
    out = q.new_zeros(len(q), q.shape[1], v_cache.shape[-1])
    out[plan.order] = finish(partial, sinks).to(q.dtype)
    return out


def prefill_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: ReferencePlan,
    chunk_starts: list[int],
    position: Tensor,
    *,
    fp8: FP8Blocks | Latents | None = None,
    scale: float,
    window: int | None = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Compute a prefill step of packed chunks: causal among themselves, dense over the nodes above.

    Args:
        q: [T, num_heads, key_size].
        k, v: [T, num_kv_heads, *], as computed in this step.
        k_cache, v_cache: [blocks, block_size, num_kv_heads, *].
        plan: the nodes above the chunks.
        chunk_starts: [num_chunks + 1], where each chunk begins in the batch.
        position: [T], of each query.
        fp8: the FP8 blocks or latents, where the nodes that are marked so lie in these.
        scale: multiplies the scores.
        window: keys that a query sees at most, its own included; None for all.
        attention_chunk: length of the chunks within which queries see keys; None for none.
        softcap: limit of the scores, where the model has one.
        sinks: [num_heads], one more logit without a value.

    Returns:
        [T, num_heads, value_size].
    """
    queries = q.float() * scale
    lowest = lowest_visible(position, window, attention_chunk)
    above = Partial.empty(len(q), q.shape[1], v.shape[-1], q.device)
    ordered_lowest = None if lowest is None else lowest[plan.order]
    above[plan.order] = _shared(
        queries[plan.order], k_cache, v_cache, fp8, plan, ordered_lowest, softcap
    )
    out = torch.empty_like(above.out)
    for start, end in itertools.pairwise(chunk_starts):
        rows = slice(start, end)
        if lowest is None:
            own = plan.causal(queries[rows], k[rows], v[rows], softcap)
        else:
            at = position[rows]
            visible = (at[None, :] <= at[:, None]) & (at[None, :] >= lowest[rows, None])
            own = dense_one(queries[rows], k[rows], v[rows], visible, softcap)
        out[rows] = finish(merge(above[rows], own), sinks)
    return out.to(q.dtype)


def _shared(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    fp8: FP8Blocks | Latents | None,
    plan: ReferencePlan,
    lowest: Tensor | None,
    softcap: float | None,
) -> Partial:
    """Attend to all shared nodes, which are merged from the root down."""
    of_levels = plan.by_level(q, k_cache, v_cache, fp8, lowest, softcap)
    none = Partial.empty(len(q), q.shape[1], v_cache.shape[-1], q.device)
    return functools.reduce(merge, of_levels) if of_levels else none


def read_node(
    k_cache: Tensor, v_cache: Tensor, fp8: FP8Blocks | Latents | None, node: Node
) -> tuple[Tensor, Tensor]:
    """Read keys and values [length, num_kv_heads, *] of a node."""
    if node.fp8:
        assert fp8 is not None and isinstance(node.slots, Tensor)
        return fp8.read(node.slots) if isinstance(fp8, Latents) else read_fp8(fp8, node.slots)
    return k_cache.flatten(0, 1)[node.slots], v_cache.flatten(0, 1)[node.slots]


def one_node(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    fp8: FP8Blocks | Latents | None,
    node: Node,
    lowest: Tensor | None,
    softcap: float | None,
) -> Partial:
    """Attend from a node's rows to its keys; q, lowest: of all rows in tree order."""
    visible = None
    if lowest is not None:
        key_position = torch.arange(node.length, device=q.device) + node.position
        visible = key_position[None, :] >= lowest[node.rows, None]
    keys, values = read_node(k_cache, v_cache, fp8, node)
    return dense_one(q[node.rows], keys, values, visible, softcap)


def _suffix(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    fp8: FP8Blocks | None,
    suffix: SuffixPlan,
    lowest: Tensor | None,
    softcap: float | None,
    partial: Partial,
) -> Partial:
    """Attend to each row's own blocks, in steps of fixed width, and add that to `partial`."""
    offsets = torch.arange(suffix.num_keys, device=q.device)
    for step in suffix.steps:
        visible = has = offsets[None, :] < step.seen[:, None]
        if lowest is not None:
            visible = has & (step.position[:, None] + offsets >= lowest[step.rows, None])
        shape = (len(step.seen), suffix.num_keys, *k_cache.shape[2:3], -1)
        if fp8 is None:
            k, v = k_cache.index_select(0, step.blocks), v_cache.index_select(0, step.blocks)
        else:
            size = k_cache.shape[1]
            slots = step.blocks.long()[:, None] * size + offsets[:size]
            k, v = read_fp8(fp8, slots.flatten())
            # Beyond its end a block has what its memory held before, of another dtype maybe.
            v = v.masked_fill(~has.flatten()[:, None, None], 0.0)
        own = dense_each(q[step.rows], k.view(shape), v.view(shape), visible, softcap)
        if isinstance(step.rows, slice):
            partial = merge(partial, own)
        else:
            partial[step.rows] = merge(partial[step.rows], own)
    return partial
