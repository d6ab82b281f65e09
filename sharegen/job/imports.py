"""What a job imports before it computes: less of it where nothing is to be compiled."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from sharegen.common.start_clock import IMPORTS, START
from sharegen.engine.model.compile.kept_code import begin_to_hash_triton
from sharegen.engine.model.starting.lean_imports import import_transformers
from sharegen.engine.model.starting.no_collections import no_collections

if TYPE_CHECKING:  # it is imported before what reads a job
    from sharegen.workload.configuration import Configuration

_GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA, of AMD, of either under Windows


def import_engine(configuration: Configuration, computes: bool = True) -> None:
    """Import torch and transformers, as much of them as the job needs.

    Nothing that a user can get wrong is found by it: call it when all of that was looked at.
    computes: whether this process does, and not others alone.
    """
    machine = configuration.machine
    with START.part(IMPORTS), no_collections():
        compiles = computes and machine.compile is not False and not on_cpu(configuration)
        alone = machine.ray is None and machine.tensor_parallel_size == 1
        whole = compiles or not alone
        import_transformers(compiles=whole, shards=whole)
        import sharegen.engine.model.load  # noqa: F401
    if computes and not on_cpu(configuration):
        begin_to_hash_triton()


def on_cpu(configuration: Configuration) -> bool:
    """Whether this machine computes the job on its CPU, for all that is known before torch is."""
    return has_cpu_alone(configuration.machine.device)


def has_cpu_alone(device: str) -> bool:
    """Whether a device as users name it is this machine's CPU, for all that is known before torch
    is.
    """
    return device == "cpu" or (device == "auto" and not _may_have_gpu())


def _may_have_gpu() -> bool:
    """Whether a GPU is likely: torch says it for certain, but takes a second to import."""
    return sys.platform != "linux" or any(map(os.path.exists, _GPUS))
