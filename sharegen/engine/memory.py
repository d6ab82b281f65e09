"""How much memory the KV cache may take where nobody says."""

from __future__ import annotations

import os

import torch

_GPU_SHARE = 0.85  # of what is free once the model is loaded; the rest is for a step's activations
_CPU_SHARE = 0.25
_CPU_MOST = 4 << 30


def free_memory(device: torch.device) -> int:
    """Bytes for the KV cache on this device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(int(pages * _CPU_SHARE), _CPU_MOST)
