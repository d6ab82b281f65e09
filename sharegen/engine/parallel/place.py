"""Where the workers of one machine run: one a GPU, or the cores of a CPU divided among them."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from sharegen.engine.execute.memory import estimate
from sharegen.engine.model.checkpoint import resolve_device
from sharegen.engine.parallel.messages import Setting
from sharegen.errors import UsageError


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def places(setting: Setting, count: int) -> list[Setting]:
    """The setting, once for each of `count` workers with what is its own.

    Raises UsageError for more workers than there are GPUs, or cores.
    """
    if count < 1:
        raise UsageError(f"{count} workers: there must be at least 1")
    device = resolve_device(setting.device)
    if device.type == "cpu":
        if count > cores():
            raise UsageError(f"{count} workers are too many: this machine has {cores()} cores")
        limit = estimate(device) // count
        if setting.config.kv_cache_limit is not None:
            limit = min(limit, setting.config.kv_cache_limit)
        config = replace(setting.config, kv_cache_limit=limit)
        return [replace(setting, device="cpu", threads=cores() // count, config=config)] * count
    if count == 1:
        return [setting]
    if device.index is not None:
        raise UsageError(
            f"{setting.device} is one GPU, and {count} workers take one each: give the device as "
            "cuda, and which there are by CUDA_VISIBLE_DEVICES"
        )
    found = torch.cuda.device_count()
    if count > found:
        raise UsageError(f"{count} workers are too many: there are {found} GPUs")
    return [replace(setting, device=f"cuda:{index}") for index in range(count)]
