"""How much memory the KV cache may take where nobody says, and what it is to have too little."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from sharegen.errors import CapacityError

_GPU_SHARE = 0.85  # of what is free once the model is loaded, where no step has been measured
_MARGIN_SHARE = 0.015  # of a GPU, for what comes later: graphs, kernels, plans that grow, swaps
_LEAST_MARGIN = 512 << 20
_OF_PLANS = 512 << 20  # about what attention's plans and buffers take at most
_CPU_SHARE = 0.25
_CPU_MOST = 4 << 30
_LEAST_SLOTS = 3  # of one prompt that moves on, where from and where to; and of one row
_SLOTS_A_ROW = 2  # its own, and one for nodes: samples of one prompt share its own
_SLOTS_OF_A_PATH = 16  # nodes above one another, however few rows there are
_TOKENS_ALONE = 16  # of memory one part is for the ids of tokens, where there is no KV
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")  # of version 2, as a container sees its own
_TOO_LITTLE = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one in whose handling it was raised, says that memory ran out.

    The allocator has a class of its own for that; cuBLAS, Triton and the driver have not.
    """
    if error is None:
        return False
    said = isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _TOO_LITTLE)
    )
    return said or is_out_of_memory(error.__context__)


def rank_out_of_memory(rank: int) -> CapacityError:
    """Return the error of a step that finds no memory half-way: the other ranks wait in it."""
    return CapacityError(
        f"rank {rank} ran out of memory during a step, which all ranks do together: let fewer "
        "sequences decode together (--max-sequences)"
    )


def left_beside(
    steps: int, free: int, total: int, held: int = 0, share: float | None = None
) -> int:
    """Return the bytes for the KV cache on a GPU of `total` bytes, `free` of them free.

    steps: what the largest steps take at their peak. share: of the GPU, that these, the cache and
    what this process holds there already may take together.
    """
    margin = max(_LEAST_MARGIN, int(total * _MARGIN_SHARE))
    left = free - steps - margin
    if share is not None:
        left = min(left, int(total * share) - held - steps)
    return max(0, left)


def left_again(memory: int, free: int, free_now: int, total: int, steps: int) -> int:
    """Return the bytes for a KV cache that had `memory` of the `free` that a GPU had before it.

    What stayed free beside it stays free now, too, unless that is more than steps, attention's
    plans and the margin need. free_now, total, steps: as `left_beside` takes them.
    """
    needed = free - left_beside(steps + _OF_PLANS, free, total)
    return max(0, min(memory, free_now - min(free - memory, needed)))


def check_fits(memory: int, room: int, where: str) -> None:
    """Raise CapacityError for a KV cache of more bytes than there is room for."""
    if memory > room:
        raise CapacityError(
            f"a KV cache of {memory:,} bytes does not fit: {where} are {room:,} bytes: give it less"
        )


def memory_of_cpu() -> int:
    """Return the bytes of memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_memory_of_cpu() -> int:
    """Bytes of this machine that can be had, or of what its container may use.

    Files that are kept at hand make room.
    """
    try:
        said = dict(line.split()[:2] for line in _MEMINFO.read_text("ascii").splitlines())
        free = int(said["MemAvailable:"]) << 10
    except OSError:
        return memory_of_cpu()
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        used = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except OSError:
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - int(used["anon"])))


def blocks_in(memory: int, block_bytes: int) -> int:
    """How many blocks of KV so much memory holds. Raises CapacityError for fewer than two."""
    if memory < 2 * block_bytes:
        raise CapacityError(
            f"a KV cache of {memory:,} bytes does not even hold two blocks of {block_bytes:,} "
            "bytes: give it more memory"
        )
    return memory // block_bytes


def slots_in(memory: int, state_bytes: int, rows: int, has_attention: bool) -> int:
    """How many slots for states so much memory holds, beside the KV that takes the rest.

    state_bytes: of one sequence; rows: decoded together. The KV has half of the memory at least,
    and without attention next to nothing. Raises CapacityError for fewer slots than one sample
    takes.
    """
    theirs = memory // 2 if has_attention else memory - memory // _TOKENS_ALONE
    if theirs < _LEAST_SLOTS * state_bytes:
        raise CapacityError(
            f"a KV cache of {memory:,} bytes leaves {theirs:,} for the states of the model's "
            f"mixers, and one sample needs {_LEAST_SLOTS} states of {state_bytes:,} bytes: give it "
            "more memory"
        )
    return min(most_slots(rows), theirs // state_bytes)


def most_slots(rows: int) -> int:
    """Slots that so many rows, and the nodes that they go on from, have use for."""
    return _SLOTS_A_ROW * rows + _SLOTS_OF_A_PATH


def estimate(device: torch.device, weights: int = 0, free: int | None = None) -> int:
    """Bytes for the KV cache on this device, without trying what a step takes.

    weights: the bytes of those that are not on a GPU yet. free: those of a GPU that need not be
    here; by default the device's.
    """
    if device.type == "cuda":
        there = torch.cuda.mem_get_info(device)[0] if free is None else free
        return max(0, int((there - weights) * _GPU_SHARE))
    return min(int(memory_of_cpu() * _CPU_SHARE), _CPU_MOST)
