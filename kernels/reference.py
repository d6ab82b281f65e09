"""Exact shared-prefix attention in plain torch: the ground truth, and the path without a GPU.

softmax(q K^T) V over a row's whole context equals the parts over its shared nodes and over its own
tokens, each with its log-sum-exp, merged (Hydragen, section 3.1, equations 2-5). Every shared node
is one matrix product with the queries of all rows under it (section 3.2; ChunkAttention's
chunk-first phase), and its keys and values are read once.

Conventions: a partial is `(out, lse)`, out [rows, num_heads, value_size] in float32, lse
[rows, num_heads] in float32, natural logarithm; a part without keys has lse = -inf and out = 0 and
merges cleanly. A row sees keys from `lowest[row]` to its own position (windows and chunks). Sinks
enter once, at the end.

The arithmetic of a row depends neither on the other rows nor on how many there are: suffixes are
read in steps of fixed width, and products are padded (a BLAS takes other paths for few or odd
rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from sharegen.kernels.layout import SharedLayout

Partial = tuple[torch.Tensor, torch.Tensor]

_LEAST = 16  # rows come in multiples of this, keys at least so many: a BLAS treats odd ends apart
_SUFFIX_STEP = 64  # suffix tokens read at once


@dataclass(frozen=True)
class _Node:
    rows: torch.Tensor | slice  # which query rows
    slots: torch.Tensor | slice  # where the keys lie
    position: int  # absolute position of the first key


class ReferencePlan:
    """A SharedLayout with its indices as tensors, made once a batch and used by every layer."""

    def __init__(self, layout: SharedLayout, block_size: int, device: torch.device) -> None:
        self.nodes: list[_Node] = []
        num_rows = len(layout.order)
        in_order = bool((layout.order[1:] > layout.order[:-1]).all())
        order = torch.from_numpy(layout.order).to(device, torch.int64)
        offsets = torch.arange(block_size, device=device)
        for i in range(layout.num_nodes):
            start, end = int(layout.row_start[i]), int(layout.row_end[i])
            everything = in_order and end - start == num_rows == int(layout.order[-1]) + 1
            rows = slice(0, num_rows) if everything else order[start:end]
            blocks = layout.blocks[layout.block_start[i] : layout.block_start[i + 1]]
            length = int(layout.length[i])
            slots: torch.Tensor | slice
            if layout.contiguous[i]:
                first = int(blocks[0]) * block_size
                slots = slice(first, first + length)
            else:
                table = torch.from_numpy(blocks).to(device, torch.int64)
                slots = (table[:, None] * block_size + offsets).flatten()[:length]
            self.nodes.append(_Node(rows, slots, int(layout.position[i])))


def lowest_visible(
    position: torch.Tensor, window: int | None, chunk: int | None
) -> torch.Tensor | None:
    """[rows] the first position that each row may see; None when it is 0 for all.

    window: a row at p sees the last `window` positions, its own included. chunk: it sees from the
    start of its chunk.
    """
    if window is not None:
        return (position - window + 1).clamp(min=0)
    if chunk is not None:
        return position // chunk * chunk
    return None


def merge(a: Partial, b: Partial) -> Partial:
    """Two partials of the same rows as one (Hydragen, equation 5)."""
    top = torch.maximum(a[1], b[1])
    top = torch.where(top == float("-inf"), 0.0, top)
    weight_a, weight_b = torch.exp(a[1] - top), torch.exp(b[1] - top)
    total = weight_a + weight_b
    safe = torch.where(total == 0, 1.0, total)
    out = a[0] * (weight_a / safe)[..., None] + b[0] * (weight_b / safe)[..., None]
    return out, top + torch.log(total)


def finish(partial: Partial, sinks: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """The output of the merged partials. sinks: [num_heads] one more logit without a value."""
    out, lse = partial
    if sinks is not None:
        out = out * torch.sigmoid(lse - sinks.float())[..., None]
    return out.to(dtype)


def store(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:  # fmt: skip
    """Put k, v [T, num_kv_heads, *] into their slots [T] of the caches [blocks, block, heads, *]."""
    k_cache.view(-1, *k_cache.shape[2:]).index_copy_(0, slots, k)
    v_cache.view(-1, *v_cache.shape[2:]).index_copy_(0, slots, v)


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: ReferencePlan,
    block_tables: torch.Tensor,
    prefix_length: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """One decoding step: each row against the nodes above it and its own suffix.

    q: [rows, num_heads, key_size]; the keys and values of the step are in the caches already.
    block_tables: [rows, max_blocks] the suffix's blocks. prefix_length: [rows] tokens above the
    suffix. position: [rows] of the query; a dead row has position = prefix_length - 1 and gets 0.
    Returns [rows, num_heads, value_size].
    """
    lowest = lowest_visible(position, window, chunk)
    partial = _shared(q, k_cache, v_cache, plan, lowest, scale, softcap)
    partial = _suffix(
        q, k_cache, v_cache, block_tables, prefix_length, position, lowest, partial, scale, softcap
    )
    return finish(partial, sinks, q.dtype)


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: ReferencePlan,
    chunk_starts: list[int],
    position: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Packed stretches of prompts: causal among themselves, dense over the nodes above.

    q: [T, num_heads, key_size]; k, v: [T, num_kv_heads, *]. chunk_starts: [num_chunks + 1] where
    each stretch begins in the batch. position: [T]. Returns [T, num_heads, value_size].
    """
    lowest = lowest_visible(position, window, chunk)
    shared_out, shared_lse = _shared(q, k_cache, v_cache, plan, lowest, scale, softcap)
    out = torch.empty_like(shared_out)
    for start, end in zip(chunk_starts[:-1], chunk_starts[1:], strict=True):
        rows = slice(start, end)
        own = position[rows]
        visible = own[None, :] <= own[:, None]
        if lowest is not None:
            visible &= own[None, :] >= lowest[rows, None]
        causal = _dense(q[rows], k[rows], v[rows], visible, scale, softcap)
        out[rows] = finish(
            merge((shared_out[rows], shared_lse[rows]), causal), sinks, torch.float32
        )
    return out.to(q.dtype)


def _shared(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: ReferencePlan,
    lowest: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> Partial:
    """All shared nodes, merged from the root down."""
    keys, values = k_cache.view(-1, *k_cache.shape[2:]), v_cache.view(-1, *v_cache.shape[2:])
    num_rows, num_heads = q.shape[:2]
    out = q.new_zeros(num_rows, num_heads, v_cache.shape[-1], dtype=torch.float32)
    lse = q.new_full((num_rows, num_heads), float("-inf"), dtype=torch.float32)
    for node in plan.nodes:
        k, v = keys[node.slots], values[node.slots]
        visible = None
        if lowest is not None:
            key_position = torch.arange(len(k), device=q.device) + node.position
            visible = key_position[None, :] >= lowest[node.rows, None]
        partial = _dense(q[node.rows], k, v, visible, scale, softcap)
        merged = merge((out[node.rows], lse[node.rows]), partial)
        out[node.rows], lse[node.rows] = merged
    return out, lse


def _suffix(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    prefix_length: torch.Tensor,
    position: torch.Tensor,
    lowest: torch.Tensor | None,
    partial: Partial,
    scale: float,
    softcap: float | None,
) -> Partial:
    """Each row's own blocks, in steps of fixed width, folded into `partial`."""
    out, lse = partial
    block_size = k_cache.shape[1]
    step = max(1, _SUFFIX_STEP // block_size)
    length = position - prefix_length + 1
    longest = int(length.max())
    offsets = torch.arange(step * block_size, device=q.device)
    for first in range(0, -(-longest // block_size), step):
        begin = first * block_size
        rows = (length > begin).nonzero()[:, 0]
        blocks = block_tables[rows, first : first + step].to(torch.int64)
        if blocks.shape[1] < step:
            blocks = pad(blocks, (0, step - blocks.shape[1]))
        visible = offsets[None, :] < (length[rows] - begin)[:, None]
        if lowest is not None:
            key_position = prefix_length[rows, None] + begin + offsets
            visible &= key_position >= lowest[rows, None]
        k, v = k_cache[blocks].flatten(1, 2), v_cache[blocks].flatten(1, 2)
        own = _dense_each(q[rows], k, v, visible, scale, softcap)
        out[rows], lse[rows] = merge((out[rows], lse[rows]), own)
    return out, lse


def _dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> Partial:
    """Rows q [T, num_heads, D] against common keys k [L, num_kv_heads, D], v; visible: [T, L]."""
    num_rows, num_heads, _ = q.shape
    num_kv_heads = k.shape[1]
    group = num_heads // num_kv_heads
    queries = q.float().view(num_rows, num_kv_heads, group, -1).transpose(0, 1).flatten(1, 2)
    keys, values = k.float().transpose(0, 1), v.float().transpose(0, 1)
    if visible is not None:
        visible = visible.repeat_interleave(group, dim=0)
    rows, length = queries.shape[1], keys.shape[1]
    more_rows, more_keys = -rows % _LEAST, max(0, _LEAST - length)
    if more_rows or more_keys:
        if visible is None:
            visible = torch.ones(rows, length, dtype=torch.bool, device=q.device)
        visible = pad(visible, (0, more_keys, 0, more_rows))
        queries = pad(queries, (0, 0, 0, more_rows))
        keys, values = pad(keys, (0, 0, 0, more_keys)), pad(values, (0, 0, 0, more_keys))
    scores = torch.bmm(queries * scale, keys.transpose(1, 2))
    out, lse = _softmax(scores, values, visible, softcap)
    out = out[:, :rows].view(num_kv_heads, num_rows, group, -1).transpose(0, 1).flatten(1, 2)
    return out, lse[:, :rows].view(num_kv_heads, num_rows, group).transpose(0, 1).flatten(1, 2)


def _dense_each(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> Partial:
    """Rows q [T, num_heads, D] against their own keys k [T, L, num_kv_heads, D], v; visible: [T, L]."""
    if len(q) == 1:  # one product alone would not be computed as one of many
        out, lse = _dense_each(*(t.repeat(2, *[1] * (t.dim() - 1)) for t in (q, k, v, visible)),
                               scale, softcap)  # fmt: skip
        return out[:1], lse[:1]
    num_kv_heads = k.shape[2]
    queries = q.float().view(len(q), num_kv_heads, -1, q.shape[2]) * scale
    outs, lses = [], []
    for head in range(num_kv_heads):  # a copy-free view per head; heads are few
        scores = torch.bmm(queries[:, head], k[:, :, head].float().transpose(1, 2))
        out, lse = _softmax(scores, v[:, :, head].float(), visible[:, None], softcap)
        outs.append(out)
        lses.append(lse)
    return torch.stack(outs, dim=1).flatten(1, 2), torch.stack(lses, dim=1).flatten(1, 2)


def _softmax(
    scores: torch.Tensor, values: torch.Tensor, visible: torch.Tensor | None, softcap: float | None
) -> Partial:
    """scores [N, M, L] (overwritten) and values [N, L, D] -> out [N, M, D], lse [N, M]."""
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if visible is not None:
        scores.masked_fill_(~visible, float("-inf"))
    top = scores.amax(dim=-1, keepdim=True)
    if visible is not None:
        top = torch.where(top == float("-inf"), 0.0, top)
    weights = scores.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    out = torch.bmm(weights, values)
    lse = (top + torch.log(total))[..., 0]
    if visible is not None:
        total = torch.where(total == 0, 1.0, total)
    return out.div_(total), lse
