"""What is imported before an engine is made, and what goes on beside that.

An engine of this process has its GPU woken up and Triton's files hashed meanwhile. Nothing of it
happens before somebody asks for an engine: whoever only imports sharegen may fork.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from sharegen.common.start_clock import IMPORTS, START
from sharegen.engine.model.compile.kept_code import begin_to_hash_triton
from sharegen.engine.model.starting.lean_imports import import_transformers
from sharegen.engine.model.starting.modules_of_frames import modules_of_frames
from sharegen.engine.model.starting.no_collections import no_collections

_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, of either under Windows


def import_engine(
    device: str, *, compiles: bool, shards: bool, computes: bool = True, here: bool = False
) -> None:
    """Import torch and transformers, as much of them as is needed.

    Nothing that a user can get wrong is found by it: call it when all of that was looked at.

    Args:
        device: as users name it.
        compiles, shards: see `import_transformers`.
        computes: whether this process does, and not others alone.
        here: whether it certainly has an engine, whose GPU is then woken up meanwhile.
    """
    on_gpu = computes and not has_cpu_alone(device)
    with START.part(IMPORTS), no_collections(), modules_of_frames():
        if on_gpu and here:
            _begin_to_wake(device)
        import_transformers(compiles=compiles, shards=shards)
        import sharegen.engine.model.load

        if here:
            import sharegen.engine.parallel.rank_zero  # noqa: F401
    if on_gpu:
        begin_to_hash_triton()


def has_cpu_alone(device: str) -> bool:
    """Whether a device as users name it is this machine's CPU, for all that is known before torch
    is.
    """
    return device == "cpu" or (device == "auto" and not _may_have_gpu())


def _may_have_gpu() -> bool:
    """Whether a GPU is likely: torch says it for certain, but takes a second to import."""
    return sys.platform != "linux" or any(map(os.path.exists, _GPUS))


def _begin_to_wake(device: str) -> None:
    """Let a thread be the first to use the GPU: that takes a part of a second.

    Nothing is done in a process that uses GPUs already: it may mean another one than the first.
    """
    import torch

    if torch.cuda.is_initialized():
        return

    def use() -> None:
        with contextlib.suppress(Exception):  # whoever uses it next says what is wrong
            torch.empty(1, device="cuda" if device == "auto" else device)

    threading.Thread(target=use, daemon=True).start()
