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
_LONG_PROMPT = 3072  # tokens, from which the larger tile's speed outweighs what it wastes


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
    """lines x keys of one matrix product, and how a program computes it.

    max_registers: of a thread, None for what the compiler likes; fewer leave room to others.
    """

    lines: int
    keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


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


def beside_tile(shape: AttentionShape) -> Tile:
    """For few shared keys: leaves the suffix phase room to run on the same processors."""
    tile = shared_tile(shape)
    if shape.dtype == torch.float32 or tile.lines > 64 or _weight(shape) > 1:
        return tile
    return Tile(64, 32, 4, 3, max_registers=168)


def suffix_tile(shape: AttentionShape) -> Tile:
    """For one row against its own keys: memory-bound, small tiles, many programs at a time."""
    lines = max(8, 1 << (shape.group - 1).bit_length())
    if shape.dtype == torch.float32 or lines > 16:
        return Tile(lines, 16, 4, 2)
    return Tile(lines, 16, 1 if _weight(shape) == 1 else 2, 3)


def causal_tile(shape: AttentionShape, tokens: int) -> Tile:
    """For prompts of up to `tokens` among themselves; here lines are tokens of one query head."""
    weight = _weight(shape)
    if shape.dtype == torch.float32:
        return Tile(32, 32 if weight <= 2 else 16, 4, 2)
    if weight == 1:
        return Tile(128, 64 if tokens > _LONG_PROMPT else 32, 8, 3)
    return Tile(64, 32 if weight > 2 else 64, 4, 2)


def resident_programs(device: torch.device, tile: Tile) -> int:
    """Programs of the shared phase that the device holds at once."""
    if device.type != "cuda":
        return 8
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * (2 if tile.num_warps <= 4 else 1)
