"""Where the workers of one machine run: one a GPU, or the cores of a CPU divided among them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch

from sharegen.common.cores import available_cores
from sharegen.engine.execute.memory import estimate, memory_of_cpu
from sharegen.engine.model.checkpoint.source import resolve_device
from sharegen.engine.parallel.driver import Driver
from sharegen.engine.parallel.launch import Processes
from sharegen.engine.parallel.messages import Setting
from sharegen.engine.parallel.outline import CPU
from sharegen.errors import UsageError

D = TypeVar("D", bound=Driver)


def as_many_as_pay(setting: Setting, kind: type[D], workplace: Processes | None = None) -> D:
    """Workers for the cores of a CPU: as many as one leaves idle, and memory holds.

    kind: of the driver that they get. The first one tries how many of torch's threads its steps are
    worth; the others are started then.
    """
    cores = available_cores()
    setting = share_of_memory(replace(setting, device="cpu"), cores)
    driver = kind([replace(setting, threads=cores)], workplace)
    first = driver.ready
    fitting = memory_of_cpu() // (2 * first.resident)
    for _ in range(min(cores // first.threads, fitting) - 1):
        driver.start_worker(replace(setting, threads=first.threads))
    return driver


def room(device: torch.device, ranks: int) -> int | None:
    """How many workers of so many ranks this machine has room for; at least one.

    None where workers of one rank share a CPU: how many pay is tried (`as_many_as_pay`).
    """
    if device.type == "cuda":
        return max(1, torch.cuda.device_count() // ranks)
    return None if ranks == 1 else max(1, available_cores() // ranks)


def places(setting: Setting, count: int) -> list[Setting]:
    """The setting, once for each of `count` workers with what is its own.

    A worker has a GPU for each of its ranks. Raises UsageError for more workers than there are
    GPUs for, or cores.
    """
    each = setting.ranks
    if count < 1:
        raise UsageError(f"{count} workers: there must be at least 1")
    if each < 1:
        raise UsageError(f"a tensor parallel size of {each}: it must be at least 1")
    device = CPU if setting.device == "cpu" else resolve_device(setting.device)
    if device.type == "cpu":
        cores = available_cores()
        if count > cores:
            raise UsageError(f"{count} workers are too many: this machine has {cores} cores")
        setting = share_of_memory(setting, count * each)
        return [replace(setting, device="cpu", threads=cores // count)] * count
    if count * each == 1:
        return [setting]
    if each == 1:
        who = f"{count} workers"
    elif count == 1:
        who = f"{each} ranks"
    else:
        who = f"{count} workers of {each} ranks"
    if device.index is not None:
        raise UsageError(
            f"{setting.device} is one GPU, and {who} take one each: give the device cuda, and "
            "choose the GPUs with CUDA_VISIBLE_DEVICES"
        )
    found = torch.cuda.device_count()
    if count * each > found:
        raise UsageError(f"{who} are too many: there are {found} GPUs")
    threads = max(1, available_cores() // count)
    return [replace(setting, device=f"cuda:{i * each}", threads=threads) for i in range(count)]


def share_of_memory(setting: Setting, count: int) -> Setting:
    """The setting of one of `count` workers on a CPU, whose KV caches share what one may take."""
    limit = estimate(CPU) // count
    if setting.config.kv_cache_limit is not None:
        limit = min(limit, setting.config.kv_cache_limit)
    return replace(setting, config=replace(setting.config, kv_cache_limit=limit))
