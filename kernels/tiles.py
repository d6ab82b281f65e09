"""Which attention the kernels can do, and in tiles of which size.

A tile is (query rows x keys); rows counts one line for each query head of each row, because the
heads of a GQA group share their keys and are packed into one tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LARGEST_HEAD = 256
_LARGEST_GROUP = 128
_LEAST_LINES = 16  # of a matrix product in the tensor cores


@dataclass(frozen=True)
class AttentionShape:
    """What a plan is made for: the heads of a layer and the blocks of its KV cache."""

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    block_size: int
    dtype: torch.dtype

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True)
class Tile:
    """lines x keys of one matrix product, and how a program computes it."""

    lines: int
    keys: int
    num_warps: int
    num_stages: int


def unsupported(shape: AttentionShape, scale: float = 1.0) -> str | None:
    """Why the kernels cannot serve this attention, in words for the user; None when they can."""
    if shape.dtype not in _DTYPES:
        return f"no kernel for {shape.dtype}"
    if shape.num_heads % shape.num_kv_heads:
        return f"{shape.num_heads} query heads do not divide among {shape.num_kv_heads} KV heads"
    if shape.group > _LARGEST_GROUP:
        return f"{shape.group} query heads for each KV head (at most {_LARGEST_GROUP})"
    if max(shape.key_size, shape.value_size) > _LARGEST_HEAD:
        size = max(shape.key_size, shape.value_size)
        return f"a head size of {size} (at most {_LARGEST_HEAD})"
    if scale <= 0:
        return f"a scale of {scale} (it must be above 0)"
    return None


def padded(size: int) -> int:
    """The power of two, at least one matrix instruction wide, that holds `size`."""
    return max(_LEAST_LINES, 1 << (size - 1).bit_length())


def precision(dtype: torch.dtype) -> str:
    """Triton's input precision: float32 stays float32 (by default it would be cut to tf32)."""
    return "ieee" if dtype == torch.float32 else "tf32"


def _weight(shape: AttentionShape) -> int:
    """Shared memory that one key and value take, in units of a 128-wide bf16 head."""
    bytes_per_key = (padded(shape.key_size) + padded(shape.value_size)) * shape.dtype.itemsize
    return max(1, bytes_per_key // 512)


def shared_tile(shape: AttentionShape) -> Tile:
    """For many rows against the same keys: compute-bound, tiles of 64 lines keep one warp group."""
    weight = _weight(shape)
    lines = max(64, padded(shape.group))
    if shape.dtype == torch.float32:
        return Tile(lines, 32 if weight <= 2 else 16, 4 if lines <= 64 else 8, 2)
    return Tile(lines, 64 if weight <= 2 else 32, 4 if lines <= 64 else 8, 3 if weight == 1 else 2)


def suffix_tile(shape: AttentionShape) -> Tile:
    """For one row against its own keys: memory-bound, small tiles, many programs at a time."""
    weight = _weight(shape)
    lines = padded(shape.group)
    if shape.dtype == torch.float32:
        return Tile(lines, 32 if weight <= 2 else 16, 4, 2)
    warps = (1 if shape.group == 1 else 2) if lines == 16 else 4
    return Tile(lines, 32, warps, 4 if weight == 1 else 3)


def causal_tile(shape: AttentionShape) -> Tile:
    """For the tokens of a prompt among themselves; here lines are tokens of one query head."""
    weight = _weight(shape)
    if shape.dtype == torch.float32:
        return Tile(32, 32 if weight <= 2 else 16, 4, 2)
    return Tile(128, 64, 8, 3) if weight == 1 else Tile(64, 32 if weight > 2 else 64, 4, 2)
