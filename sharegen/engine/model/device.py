"""Where a model computes. Apart from `checkpoint.py`, whose transformers take seconds to import."""

from __future__ import annotations

import torch

from sharegen.errors import UsageError


def resolve_device(device: str | torch.device) -> torch.device:
    """ "auto" is CUDA where there is one. Raises UsageError for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(f"unknown device {device!r}: use auto, cpu or cuda") from None
    if resolved.type not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} is not supported: use auto, cpu or cuda")
    if resolved.type == "cuda":
        if not torch.cuda.is_available():
            raise UsageError(f"device {device} was asked for but no CUDA GPU is available")
        if resolved.index is not None and resolved.index >= torch.cuda.device_count():
            raise UsageError(f"there is no {device}: {torch.cuda.device_count()} CUDA devices")
    return resolved
