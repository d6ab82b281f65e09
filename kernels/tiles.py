"""Which attention the kernels can do, and in tiles of which size.

A tile is (query rows x keys); rows counts one line for each query head of each row, because the
heads of a GQA group share their keys and are packed into one tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_LARGEST_HEAD = 256
_LARGEST_GROUP = 128
_LEAST_LINES = 16  # of a matrix product in the tensor cores
_LEAST_KEYS = 16  # of the same
_BESIDES = 2048  # bytes of shared memory: a tile's reductions, and what a program takes unasked
HOPPER_SHARED_MEMORY = 227 << 10  # bytes a program, for which the tiles were measured
_MANY_LINES = 1024  # query heads of all rows for one KV head, which keep every processor busy
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


def unsupported(
    shape: AttentionShape, scale: float = 1.0, limit: int = HOPPER_SHARED_MEMORY
) -> str | None:
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
    tiles = [shared_tile(shape, limit), beside_tile(shape, limit), suffix_tile(shape, limit)]
    tiles += [many_tile(shape, limit, long=long) for long in (False, True)]
    tiles += [causal_tile(shape, tokens, limit) for tokens in (0, _LONG_PROMPT + 1)]
    need = max(shared_memory(shape, tile) for tile in tiles)
    if need > limit:
        return f"{need:,} bytes of shared memory (this GPU has {limit:,} for a program)"
    return None


def shared_memory_limit(device: torch.device) -> int:
    """Bytes of shared memory that one program may take."""
    if device.type != "cuda":
        return HOPPER_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin  # type: ignore[attr-defined]


def shared_memory(shape: AttentionShape, tile: Tile) -> int:
    """Bytes of shared memory of a program: its queries, and the keys and values of each stage."""
    key_size, value_size = padded(shape.key_size), padded(shape.value_size)
    numbers = tile.lines * key_size + tile.num_stages * tile.keys * (key_size + value_size)
    return numbers * shape.dtype.itemsize + _BESIDES


def _within(limit: int, shape: AttentionShape, tile: Tile, least_lines: int) -> Tile:
    """The tile, with as much less as its shared memory must be: first stages, keys, then lines."""
    while shared_memory(shape, tile) > limit:
        if tile.num_stages > 2:
            tile = replace(tile, num_stages=tile.num_stages - 1)
        elif tile.keys > _LEAST_KEYS:
            tile = replace(tile, keys=tile.keys // 2)
        elif tile.num_stages > 1:
            tile = replace(tile, num_stages=1)
        elif tile.lines > max(_LEAST_LINES, least_lines):
            tile = replace(tile, lines=tile.lines // 2)
        else:
            break  # `unsupported` says so
    return tile


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


def shared_tile(shape: AttentionShape, limit: int) -> Tile:
    """Return the tile for many rows that read the same keys: it is compute-bound.

    Tiles of 64 lines keep one warp group; wide heads leave room for one program, which has two.
    limit: of shared memory, here and below.
    """
    weight = _weight(shape)
    lines = max(64, padded(shape.group))
    num_warps = 4 if lines <= 64 else 8
    if shape.dtype == torch.float32:
        tile = Tile(lines, 32 if weight <= 2 else 16, num_warps, 2)
    else:
        wide = Tile(128, 32, 8, 3)
        if weight == 2 and shared_memory(shape, wide) <= limit:
            return wide
        tile = Tile(lines, 64 if weight <= 2 else 32, num_warps, 3 if weight == 1 else 2)
    return _within(limit, shape, tile, padded(shape.group))


def beside_tile(shape: AttentionShape, limit: int) -> Tile:
    """Return the tile for few shared keys: it leaves room for suffix programs beside it."""
    tile = shared_tile(shape, limit)
    if shape.dtype == torch.float32 or padded(shape.group) > 64 or _weight(shape) > 2:
        return tile
    registers = 168 if _weight(shape) == 1 else None
    return _within(limit, shape, Tile(64, 32, 4, 3, registers), padded(shape.group))


def many_tile(shape: AttentionShape, limit: int, *, long: bool, fp8: bool = False) -> Tile:
    """Return the tile for many rows: two warp groups read the same keys, and leave suffixes room.

    long: many keys. fp8: suffixes of 8 bits. Where each row has KV heads of its own, of 16 bits,
    its suffix takes longer than few keys, and is left more room. Of other cards than Hopper, and
    other heads, none was better than those for fewer rows.
    """
    if limit < HOPPER_SHARED_MEMORY or _weight(shape) > 1 or shape.dtype.itemsize > 2:
        return shared_tile(shape, limit) if long else beside_tile(shape, limit)
    if shape.group == 1 and not (long or fp8):
        return Tile(128, 32, 8, 3, 144)
    return Tile(128, 64, 8, 3, 184)


def are_many(rows: int, shape: AttentionShape) -> bool:
    """Whether so many rows fill larger tiles on all processors."""
    return rows * shape.group >= _MANY_LINES


def suffix_tile(
    shape: AttentionShape, limit: int, *, fp8: bool = False, beside: bool = False
) -> Tile:
    """Return the tile for a row and its own keys: memory-bound, small, many programs at a time.

    fp8: keys of 8 bits, whose programs would take half as many registers again. They are kept
    to fewer `beside` the shared phase, and where each row has KV heads of its own.
    """
    lines = max(8, 1 << (shape.group - 1).bit_length())
    tile = Tile(lines, 16, 1 if _weight(shape) == 1 else 2, 3)
    if fp8 and (beside or shape.group == 1) and _weight(shape) == 1:
        tile = replace(tile, max_registers=112)
    if shape.dtype == torch.float32 or lines > 16:
        tile = Tile(lines, 16, 4, 2)
    return _within(limit, shape, tile, lines)


def causal_tile(shape: AttentionShape, tokens: int, limit: int) -> Tile:
    """Return the tile for prompts of up to `tokens`; its lines are tokens of one query head."""
    weight = _weight(shape)
    if shape.dtype == torch.float32:
        tile = Tile(32, 32 if weight <= 2 else 16, 4, 2)
    elif weight == 1:
        tile = Tile(128, 64 if tokens > _LONG_PROMPT else 32, 8, 3)
    else:
        tile = Tile(64, 32 if weight > 2 else 64, 4, 2)
    return _within(limit, shape, tile, _LEAST_LINES)


def num_processors(device: torch.device) -> int:
    """The streaming multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def resident_programs(device: torch.device, tile: Tile) -> int:
    """Programs of the shared phase that the device holds at once, by their warps."""
    if device.type != "cuda":
        return 8
    return num_processors(device) * (2 if tile.num_warps <= 4 else 1)


def programs_with_room(device: torch.device, shape: AttentionShape, tile: Tile) -> int:
    """Programs for which the device has shared memory at once, one a processor at least."""
    properties = torch.cuda.get_device_properties(device)
    memory = properties.shared_memory_per_multiprocessor  # type: ignore[attr-defined]
    room = memory // shared_memory(shape, tile)
    return num_processors(device) * max(1, room)
