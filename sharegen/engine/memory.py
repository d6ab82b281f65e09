"""How much memory the KV cache may take where nobody says, and what it is to have too little."""

from __future__ import annotations

import os

import torch

_GPU_SHARE = 0.85  # of what is free once the model is loaded; the rest is for a step's activations
_CPU_SHARE = 0.25
_CPU_MOST = 4 << 30
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


def free_memory(device: torch.device) -> int:
    """Bytes for the KV cache on this device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(pages * _CPU_SHARE), _CPU_MOST)
