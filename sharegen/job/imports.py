"""What a job imports before it computes: less of it where nothing is to be compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharegen.engine.model.starting.lean_imports import put_off_torch as put_off_torch
from sharegen.engine.parallel import imports
from sharegen.engine.parallel.imports import has_cpu_alone

if TYPE_CHECKING:  # it is imported before what reads a job
    from sharegen.workload.configuration import Configuration


def import_engine(configuration: Configuration, computes: bool = True, here: bool = False) -> None:
    """Import torch and transformers, as much of them as the job needs.

    Nothing that a user can get wrong is found by it: call it when all of that was looked at.
    computes: whether this process does, and not others alone. here: whether it does where no
    workers are asked for, and none may pay.
    """
    machine = configuration.machine
    workers = machine.workers
    alone = machine.ray is None and machine.tensor_parallel_size == 1
    compiles = computes and machine.compile is not False and not on_cpu(configuration)
    imports.import_engine(
        machine.device,
        compiles=compiles or not alone,
        shards=compiles or not alone,
        computes=computes,
        here=here and alone and (workers == 1 or (workers is None and not on_cpu(configuration))),
    )


def on_cpu(configuration: Configuration) -> bool:
    """Whether this machine computes the job on its CPU, for all that is known before torch is."""
    return has_cpu_alone(configuration.machine.device)
