"""Prefill: packed chunks of prompts, causal among themselves, dense over the nodes above.

The dense part is the shared phase with tokens as rows. The causal part reads keys and values as the
model made them, not from the cache, folds in the shared partials and writes the result.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from sharegen.kernels import tiles
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.merge import merge_partials
from sharegen.kernels.online_softmax import (
    NO_LIMIT,
    attend,
    finish,
    fold,
    fold_sink,
    lowest_visible,
    scores,
)
from sharegen.kernels.shared import limit_of, shared_attention
from sharegen.kernels.tile_copy import copies_tiles, copy_tile, descriptors, gather_tile
from sharegen.kernels.tiles import AttentionShape, Tile, padded, precision

_TILE_FIELDS = 3  # first token, chunk's first token, chunk's end
_CUDNN_CAPABILITY, _CUDNN_HEAD = 9, 128


class PrefillPlan:
    """One prefill batch's work on the device: the plan of the nodes, the tiles of the chunks.

    Prefill is not captured, so everything may change size with the batch.

    Args:
        shape: of the layers that the plan is for.
        max_tokens: the most tokens of a batch.
        device: where the plan lies.
        tile: of the chunks; by default one for their length.
        shared_tile: of the shared nodes; by default the one for many rows.
        deterministic: whether a token's bits depend on its chunk and the nodes above alone, not on
            the batch. All chunks have the tile of short ones.
    """

    def __init__(
        self,
        shape: AttentionShape,
        max_tokens: int,
        device: torch.device,
        *,
        tile: Tile | None = None,
        shared_tile: Tile | None = None,
        deterministic: bool = False,
    ) -> None:
        self.shape, self.max_tokens, self._tile = shape, max_tokens, tile
        limit = tiles.shared_memory_limit(device)
        if deterministic:
            self._tile = tile or tiles.causal_tile(shape, 0, limit)
        whole = shared_tile or tiles.shared_tile(shape, limit)
        self.shared = AttentionPlan(
            shape, max_tokens, device, tile=whole, deterministic=deterministic
        )
        self.has_shared = False

    def update(self, layout: SharedLayout, chunk_starts: Sequence[int]) -> None:
        """Make the plan of a batch and send it. chunk_starts: [num_chunks + 1] where each chunk
        begins in the batch.
        """
        self.shared.update(layout)
        self.has_shared = layout.num_nodes > 0
        self.lengths = np.diff(chunk_starts)
        self.suits_library = self._suits_library()
        longest = int(self.lengths.max(initial=0))
        self.tile = self._tile or tiles.causal_tile(self.shape, longest, self.shared.shared_memory)
        work = torch.from_numpy(_causal_tiles(chunk_starts, self.tile.lines))
        if self.shared.device.type == "cuda":
            work = work.pin_memory()
        self.tiles = work.to(self.shared.device, non_blocking=True)

    def _suits_library(self) -> bool:
        """Whether cuDNN does the chunks, from Hopper on the fastest: full batches of equal ones.

        It takes its time over every new shape of a batch; of these there are few. Not every version
        takes keys and values of different sizes.
        """
        device, lengths, shape = self.shared.device, self.lengths, self.shape
        return (
            device.type == "cuda"
            and not self.shared.deterministic  # which chooses by the batch
            and torch.backends.cudnn.is_available()
            and torch.cuda.get_device_capability(device)[0] >= _CUDNN_CAPABILITY
            and shape.dtype.itemsize == 2
            and shape.key_size == shape.value_size
            and shape.key_size % 8 == 0
            and shape.key_size <= _CUDNN_HEAD
            and int(lengths.sum()) == self.max_tokens
            and bool((lengths == lengths[0]).all())
        )


def _causal_tiles(chunk_starts: Sequence[int], lines: int) -> np.ndarray:
    """List the tiles [num_tiles, _TILE_FIELDS], those that see most first."""
    starts = np.asarray(chunk_starts, dtype=np.int32)
    count = -(-np.diff(starts) // lines)
    chunk = np.repeat(np.arange(len(count)), count)
    within = (np.arange(len(chunk)) - np.repeat(np.cumsum(count) - count, count)) * lines
    work = np.stack([starts[chunk] + within, starts[chunk], starts[chunk + 1]], axis=1)
    return np.ascontiguousarray(work[np.argsort(-within, kind="stable")], dtype=np.int32)


@triton.jit
def _attend_keys(
    acc, m, total, q, k_desc, v_desc, k_head_ptr, v_head_ptr, kv_head,
    begin, end, token, lowest, chunk_end, stride_kr, stride_vr, scale, softcap,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    DIAGONAL: tl.constexpr, TMA: tl.constexpr, LIMIT: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend from tokens to the keys [begin, end) of their chunk. DIAGONAL: some keys come after
    them.
    """
    for n in range(begin, end, BLOCK_N):
        key = n + tl.arange(0, BLOCK_N)
        real = (key < chunk_end)[:, None] if DIAGONAL else True
        if TMA:
            k, v = copy_tile(k_desc, v_desc, kv_head, n, BLOCK_N, BLOCK_DK, BLOCK_DV)
            if DIAGONAL:
                v = tl.where(real, v, 0.0)  # not even a NaN comes over from the next chunk
        else:
            k, v = gather_tile(
                k_head_ptr, v_head_ptr, key[:, None], 0, real, stride_kr, 0, stride_vr, 0,
                KEY_SIZE, VALUE_SIZE, BLOCK_DK, BLOCK_DV,
            )  # fmt: skip
        s, factor = scores(q, k, scale, softcap, HAS_SOFTCAP, PRECISION)
        if DIAGONAL:
            s = tl.where(key[None, :] <= token[:, None], s, float("-inf"))
        if LIMIT != NO_LIMIT:
            s = tl.where(key[None, :] >= lowest[:, None], s, float("-inf"))
        acc, m, total = attend(acc, m, total, s, factor, v, LIMIT != NO_LIMIT, PRECISION)
    return acc, m, total


@triton.jit
def _causal_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc, tiles_ptr, position_ptr,
    partial_start_ptr, shared_out_ptr, shared_lse_ptr, sinks_ptr, out_ptr,
    stride_qr, stride_qh, stride_kr, stride_kh, stride_vr, stride_vh, stride_or, stride_oh,
    scale, softcap, limit,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr, TILE_FIELDS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_DK: tl.constexpr, BLOCK_DV: tl.constexpr,
    TMA: tl.constexpr, HAS_SHARED: tl.constexpr, HAS_SINKS: tl.constexpr,
    LIMIT: tl.constexpr, HAS_SOFTCAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0) % NUM_HEADS
    tile_ptr = tiles_ptr + tl.program_id(0) // NUM_HEADS * TILE_FIELDS
    first = tl.load(tile_ptr)
    chunk_begin = tl.load(tile_ptr + 1)
    chunk_end = tl.load(tile_ptr + 2)
    o_dk = tl.arange(0, BLOCK_DK)
    o_dv = tl.arange(0, BLOCK_DV)
    token = first + tl.arange(0, BLOCK_M)
    alive = token < chunk_end
    row = token.to(tl.int64)
    p_q = q_ptr + (row * stride_qr)[:, None] + head * stride_qh + o_dk[None, :]
    q = tl.load(p_q, mask=alive[:, None] & (o_dk < KEY_SIZE)[None, :], other=0.0)
    kv_head = head // GROUP
    k_head_ptr = k_ptr + kv_head * stride_kh
    v_head_ptr = v_ptr + kv_head * stride_vh

    begin = chunk_begin
    lowest = token
    if LIMIT != NO_LIMIT:
        position = tl.load(position_ptr + token, mask=alive, other=0)
        lowest = token - position + lowest_visible(position, limit, LIMIT)
        least = tl.min(tl.where(alive, lowest, first))
        begin += tl.maximum(least - begin, 0) // BLOCK_N * BLOCK_N
    before = begin + (first - begin) // BLOCK_N * BLOCK_N
    end = tl.minimum(first + BLOCK_M, chunk_end)

    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc, m, total = _attend_keys(
        acc, m, total, q, k_desc, v_desc, k_head_ptr, v_head_ptr, kv_head,
        begin, before, token, lowest, chunk_end, stride_kr, stride_vr, scale, softcap,
        KEY_SIZE, VALUE_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV,
        False, TMA, LIMIT, HAS_SOFTCAP, PRECISION)  # fmt: skip
    acc, m, total = _attend_keys(
        acc, m, total, q, k_desc, v_desc, k_head_ptr, v_head_ptr, kv_head,
        before, end, token, lowest, chunk_end, stride_kr, stride_vr, scale, softcap,
        KEY_SIZE, VALUE_SIZE, BLOCK_N, BLOCK_DK, BLOCK_DV,
        True, TMA, LIMIT, HAS_SOFTCAP, PRECISION)  # fmt: skip

    written = alive[:, None] & (o_dv < VALUE_SIZE)[None, :]
    if HAS_SHARED:
        start = tl.load(partial_start_ptr + token, mask=alive, other=0)
        count = tl.load(partial_start_ptr + token + 1, mask=alive, other=0) - start
        for i in range(0, tl.max(count)):
            has = alive & (i < count)
            o_shared = (start + i).to(tl.int64) * NUM_HEADS + head
            lse = tl.load(shared_lse_ptr + o_shared, mask=has, other=float("-inf"))
            p_shared = shared_out_ptr + (o_shared * VALUE_SIZE)[:, None] + o_dv[None, :]
            shared = tl.load(p_shared, mask=has[:, None] & written, other=0.0).to(tl.float32)
            acc, m, total = fold(acc, m, total, shared, lse)
    if HAS_SINKS:
        sink = tl.load(sinks_ptr + head).to(tl.float32)
        acc, m, total = fold_sink(acc, m, total, tl.zeros([BLOCK_M], tl.float32) + sink)
    out, _ = finish(acc, m, total)
    p_out = out_ptr + (row * stride_or)[:, None] + head * stride_oh + o_dv[None, :]
    tl.store(p_out, out.to(out_ptr.dtype.element_ty), mask=written)


def prefill_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: PrefillPlan,
    position: torch.Tensor,
    *,
    fp8: FP8Blocks | None = None,
    scale: float,
    window: int | None = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute a prefill step of packed chunks of prompts, each over the nodes above it and itself.

    Args:
        q: [T, num_heads, key_size].
        k, v: [T, num_kv_heads, *], as computed in this step.
        k_cache, v_cache: [blocks, block_size, num_kv_heads, *].
        plan: the chunks and the shared nodes above them.
        position: [T] int32, ascending by one within each chunk of the plan.
        fp8: the FP8 blocks, where the nodes that are marked so lie in these.
        scale: multiplies the scores.
        window: keys that a query sees at most, its own included; None for all.
        attention_chunk: length of the chunks within which queries see keys; None for none.
        softcap: limit of the scores, where the model has one.
        sinks: [num_heads], one more logit without a value.
        out: [T, num_heads, value_size], where the result goes; by default a new tensor.

    Returns:
        [T, num_heads, value_size].
    """
    shape, tile, shared = plan.shape, plan.tile, plan.shared
    shared.check(q, k_cache, v_cache)
    assert k.shape == (len(q), shape.num_kv_heads, shape.key_size) and k.stride(-1) == 1
    assert v.shape == (len(q), shape.num_kv_heads, shape.value_size) and v.stride(-1) == 1
    assert position.dtype == torch.int32 and position.is_contiguous()
    if plan.has_shared:
        shared_attention(
            q, k_cache, v_cache, shared, position, fp8=fp8,
            scale=scale, window=window, attention_chunk=attention_chunk, softcap=softcap,
        )  # fmt: skip
    limit, limit_kind = limit_of(window, attention_chunk)
    if plan.suits_library and limit_kind == NO_LIMIT and softcap is None:
        return _by_library(q, k, v, plan, scale, sinks, out)
    out = q.new_empty(len(q), shape.num_heads, shape.value_size) if out is None else out
    tma = copies_tiles(k[None]) and copies_tiles(v[None])
    _causal_kernel[(len(plan.tiles) * shape.num_heads,)](
        q, k, v,
        *descriptors((k[None], v[None]), tile.keys, tma),
        plan.tiles, position, shared.partial_start, shared.partial_out,
        shared.partial_lse, shared.partial_lse if sinks is None else sinks, out,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *out.stride()[:2],
        scale, softcap or 1.0, limit,
        NUM_HEADS=shape.num_heads, GROUP=shape.group,
        KEY_SIZE=shape.key_size, VALUE_SIZE=shape.value_size, TILE_FIELDS=_TILE_FIELDS,
        BLOCK_M=tile.lines, BLOCK_N=tile.keys,
        BLOCK_DK=padded(shape.key_size), BLOCK_DV=padded(shape.value_size),
        TMA=tma, HAS_SHARED=plan.has_shared, HAS_SINKS=sinks is not None,
        LIMIT=limit_kind, HAS_SOFTCAP=softcap is not None, PRECISION=precision(shape.dtype),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out


def _by_library(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: PrefillPlan,
    scale: float,
    sinks: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    """Compute the chunks by cuDNN, then merge the shared partials and the sinks."""
    count, length = len(plan.lengths), int(plan.lengths[0])
    chunks = (x.unflatten(0, (count, length)).transpose(1, 2) for x in (q, k, v))
    own, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
        *chunks, None, True, 0.0, True, scale=scale
    )
    own = own.transpose(1, 2).flatten(0, 1)
    if not plan.has_shared and sinks is None:
        return own if out is None else out.copy_(own)
    out = torch.empty_like(own) if out is None else out
    lse = lse.view(count, -1, length).transpose(1, 2).reshape(len(q), 1, -1)
    shared = plan.shared
    return merge_partials(
        shared.partial_out, shared.partial_lse, shared.partial_start,
        own[:, None].contiguous(), lse.contiguous(), out, sinks=sinks,
    )  # fmt: skip
