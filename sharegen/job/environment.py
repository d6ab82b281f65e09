"""When and where a job is run, and by what command: for whoever finds its journal later."""

from __future__ import annotations

import platform
from datetime import datetime
from typing import TYPE_CHECKING

from sharegen.common.cores import available_cores
from sharegen.workload.configuration import Configuration

if TYPE_CHECKING:
    import torch


def environment(
    device: torch.device, configuration: Configuration, command: str | None
) -> dict[str, str]:
    """When, where and by what command a job is run; command: what was typed, where that is known.

    device: that it computes on, which is not this machine's where its workers are in a cluster.
    """
    ray = configuration.machine.ray
    found = {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "host": platform.node(),
        "device": device_name(device) if ray is None else f"{device.type} (Ray {ray})",
    }
    return found | ({} if command is None else {"command": command})


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            found = (line.partition(":")[2].strip() for line in lines if "model name" in line)
            name = next(found, "")
    except OSError:  # not Linux
        name = ""
    return f"CPU, {name or platform.processor() or platform.machine()}, {available_cores()} cores"
