"""The suffix phase over latents: each row against its own tokens, and nodes that it reads alone.

A program takes one row and as many of its heads as a tile has lines: queries have absorbed the
weight (`latents.py`), so all heads read the same latents, and each is fetched once for both
products. As in `suffix.py` products are transposed, keys by heads. What a program leaves is a
partial over latents, which is raised to values before it is merged.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sharegen.kernels.attention_plan import UNSHARED_FIELDS, AttentionPlan
from sharegen.kernels.latents import Latents
from sharegen.kernels.online_softmax import attend_transposed, finish, in_log2
from sharegen.kernels.store import is_finite
from sharegen.kernels.tiles import HOPPER_SHARED_MEMORY, num_processors, padded, precision

_MOST_SPLITS = 32
_MOST_LINES, _KEYS, _WARPS = 32, 16, 4
_BESIDES = 4096  # bytes of shared memory of a program, beside queries and latents
_UNSHARED_FIELDS = tl.constexpr(UNSHARED_FIELDS)


@dataclass(frozen=True)
class LatentTile:
    """heads x keys of one product, and how a program computes it."""

    lines: int
    keys: int
    num_warps: int
    num_stages: int


def latent_tile(num_heads: int, rank: int, size: int, dtype: torch.dtype, limit: int) -> LatentTile:
    """Return the tile for latents of `rank` numbers, `size` with the rest, in so much shared
    memory.

    Of 12 that were measured (20 heads, 1,024 rows) the fastest; more keys are no faster, and leave
    the shared phase less room.
    """
    lines = 16 if dtype == torch.float32 else min(_MOST_LINES, padded(num_heads))
    for num_stages in (3, 2, 1):
        tile = LatentTile(lines, _KEYS, _WARPS, num_stages)
        if shared_memory(tile, rank, size, dtype) <= limit:
            break
    return tile


def shared_memory(tile: LatentTile, rank: int, size: int, dtype: torch.dtype) -> int:
    """Bytes of shared memory of a program: its queries, and the latents of each stage."""
    numbers = padded(rank) + padded(size - rank)
    return (tile.lines + tile.num_stages * tile.keys) * numbers * dtype.itemsize + _BESIDES


def unsupported(
    num_heads: int, rank: int, size: int, dtype: torch.dtype, limit: int = HOPPER_SHARED_MEMORY
) -> str | None:
    """Why the kernel cannot read such latents, in words for the user; None when it can."""
    need = shared_memory(latent_tile(num_heads, rank, size, dtype, limit), rank, size, dtype)
    if need > limit:
        return f"latents of {rank} take {need:,} bytes of shared memory (this GPU has {limit:,})"
    return None


@triton.jit
def _store_kernel(
    latent_ptr, rest_ptr, blocks_ptr, slots_ptr, stride_l, stride_r, stride_t,
    RANK: tl.constexpr, REST: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    o_r, o_e = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_E)
    latent = tl.load(latent_ptr + row * stride_l + o_r, mask=o_r < RANK, other=0.0)
    rest = tl.load(rest_ptr + row * stride_r + o_e, mask=o_e < REST, other=0.0)
    odd = tl.sum(tl.where(is_finite(latent), 0, 1), 0) > 0
    latent = tl.where(odd, 0.0, latent)
    rest = tl.where(odd, float("nan"), rest)
    p_token = blocks_ptr + slot * stride_t
    tl.store(p_token + o_r, latent, mask=(o_r < RANK) & (slot >= 0))
    tl.store(p_token + RANK + o_e, rest, mask=(o_e < REST) & (slot >= 0))


def store_latents(
    latent: torch.Tensor, rest: torch.Tensor, blocks: torch.Tensor, slots: torch.Tensor
) -> None:
    """Do what `latents.store_latents` does. slots: [T] int32 or int64."""
    assert latent.dtype == rest.dtype == blocks.dtype and blocks.is_contiguous()
    assert latent.stride(-1) == 1 and rest.stride(-1) == 1 and slots.is_contiguous()
    rank, more = latent.shape[1], rest.shape[1]
    _store_kernel[(len(latent),)](
        latent, rest, blocks, slots, latent.stride(0), rest.stride(0), blocks.stride(1),
        RANK=rank, REST=more, BLOCK_R=padded(rank), BLOCK_E=padded(more), num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["num_splits", "stride_tr"])
def _latent_kernel(
    q_ptr, blocks_ptr, tables_ptr, prefix_length_ptr, position_ptr,
    unshared_start_ptr, unshared_ptr, listed_ptr, out_ptr, lse_ptr,
    stride_qr, stride_qh, stride_t, stride_tr, num_splits, scale,
    NUM_HEADS: tl.constexpr, RANK: tl.constexpr, REST: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_E: tl.constexpr,
    HAS_UNSHARED: tl.constexpr, NUM_STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    PARTS: tl.constexpr = (NUM_HEADS + BLOCK_M - 1) // BLOCK_M
    row = (tl.program_id(0) // PARTS).to(tl.int64)
    split = tl.program_id(1)
    head = tl.program_id(0) % PARTS * BLOCK_M + tl.arange(0, BLOCK_M)
    alive = head < NUM_HEADS
    o_n, o_r, o_e = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_E)
    prefix_length = tl.load(prefix_length_ptr + row)
    position = tl.load(position_ptr + row)
    p_q = q_ptr + row * stride_qr + (head * stride_qh)[:, None]
    q_r = tl.load(p_q + o_r[None, :], mask=alive[:, None] & (o_r < RANK)[None, :], other=0.0)
    q_e = tl.load(p_q + RANK + o_e[None, :], mask=alive[:, None] & (o_e < REST)[None, :], other=0.0)
    q_r, q_e = tl.trans(q_r), tl.trans(q_e)
    acc = tl.zeros([BLOCK_R, BLOCK_M], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)

    first_node = 0
    own = 0  # comes after the unshared nodes, and is read like one
    if HAS_UNSHARED:
        first_node = tl.load(unshared_start_ptr + row)
        own = tl.load(unshared_start_ptr + row + 1)
    for node in range(first_node, own + 1):
        length = tl.maximum(position - prefix_length + 1, 0)
        first_block = 0
        is_run = False
        list_ptr = tables_ptr + row * stride_tr
        if node < own:
            node_ptr = unshared_ptr + node * _UNSHARED_FIELDS
            length = tl.load(node_ptr)
            first_block = tl.load(node_ptr + 2)
            is_run = tl.load(node_ptr + 3) % 2 == 1
            list_ptr = listed_ptr
        part = tl.cdiv(tl.cdiv(length, num_splits), BLOCK_N) * BLOCK_N
        begin = tl.minimum(split * part, length)
        end = tl.minimum(begin + part, length)
        for n in tl.range(begin, end, BLOCK_N, num_stages=NUM_STAGES):
            token = n + o_n
            real = token < end
            block = first_block + token // BLOCK_SIZE
            block = tl.where(is_run, block, tl.load(list_ptr + block, mask=real & ~is_run, other=0))
            p_token = blocks_ptr + (block.to(tl.int64) * BLOCK_SIZE + token % BLOCK_SIZE) * stride_t
            p_c = p_token[:, None] + o_r[None, :]
            c = tl.load(p_c, mask=real[:, None] & (o_r < RANK)[None, :], other=0.0)
            p_e = p_token[:, None] + RANK + o_e[None, :]
            e = tl.load(p_e, mask=real[:, None] & (o_e < REST)[None, :], other=0.0)
            s = tl.dot(c, q_r, input_precision=PRECISION)
            s = tl.dot(e, q_e, s, input_precision=PRECISION)
            s, factor = in_log2(s, scale, 1.0, False)
            s = tl.where(real[:, None], s, float("-inf"))
            acc, m, total, _ = attend_transposed(
                acc, m, total, s, factor, c, None, 1.0, False, PRECISION
            )
    out, lse = finish(tl.trans(acc), m, total)
    o_out = (row * num_splits + split) * NUM_HEADS + head
    tl.store(lse_ptr + o_out, lse, mask=alive)
    p_out = out_ptr + (o_out * RANK)[:, None] + o_r[None, :]
    tl.store(p_out, out.to(out_ptr.dtype.element_ty), mask=alive[:, None] & (o_r < RANK)[None, :])


def own_latents(
    q: torch.Tensor,
    latents: Latents,
    plan: AttentionPlan,
    block_tables: torch.Tensor,
    prefix_length: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
    tile: LatentTile | None = None,
    num_splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend from each row to its own latents and to the plan's unshared nodes.

    Args:
        q: [rows, num_heads, size], absorbed.
        latents: the blocks that are read, the row's own token in them.
        plan: has the unshared nodes.
        block_tables: [rows, max_blocks] int32, the row's own blocks.
        prefix_length: [rows] int32, tokens before its own.
        position: [rows] int32, of the query; prefix_length - 1 where a row has no tokens of its
            own.
        scale: multiplies the scores.
        tile, num_splits: how the work is divided; by default as is found best.

    Returns:
        [rows, splits, num_heads, rank] and their log-sum-exp [rows, splits, num_heads] in float32.
    """
    num_rows, num_heads, size = q.shape
    rank, blocks = latents.rank, latents.blocks
    assert size == latents.size and q.stride(-1) == 1 and blocks.is_contiguous()
    assert q.dtype == blocks.dtype and blocks.shape[1] == plan.shape.block_size
    for indices in (block_tables, prefix_length, position):
        assert indices.dtype == torch.int32 and indices.stride(-1) == 1
        assert indices.shape[0] >= num_rows
    tile = tile or latent_tile(num_heads, rank, size, q.dtype, plan.shared_memory)
    programs = num_rows * triton.cdiv(num_heads, tile.lines)
    splits = num_splits or _num_splits(programs, q.device)
    out = q.new_empty(num_rows, splits, num_heads, rank)
    lse = q.new_empty(num_rows, splits, num_heads, dtype=torch.float32)
    _latent_kernel[(programs, splits)](
        q, blocks, block_tables, prefix_length, position,
        plan.unshared_start, plan.unshared_nodes, plan.blocks, out, lse,
        q.stride(0), q.stride(1), blocks.stride(1), block_tables.stride(0), splits, scale,
        NUM_HEADS=num_heads, RANK=rank, REST=size - rank, BLOCK_SIZE=blocks.shape[1],
        BLOCK_M=tile.lines, BLOCK_N=tile.keys, BLOCK_R=padded(rank), BLOCK_E=padded(size - rank),
        HAS_UNSHARED=plan.has_unshared, NUM_STAGES=tile.num_stages, PRECISION=precision(q.dtype),
        num_warps=tile.num_warps, num_stages=tile.num_stages,
    )  # fmt: skip
    return out, lse


def _num_splits(programs: int, device: torch.device) -> int:
    """Parts of a row's tokens, so that a captured batch of few rows still fills the device."""
    slots = 2 * num_processors(device) if device.type == "cuda" else 8
    return max(1, min(_MOST_SPLITS, slots // programs))
