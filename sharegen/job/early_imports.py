"""Workers' imports, begun while the command itself imports what it needs to read its job.

Whether a job on a CPU gets workers is known when its rows are read, half a second after its flags.
By then the process that workers are copied from has imported a fifth of what they run. Where the
job gets none, or what was typed is wrong, that process is ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from sharegen.common.cores import available_cores
from sharegen.engine.parallel.copies import SERVER
from sharegen.engine.parallel.imports import has_cpu_alone

_FEW = 50  # rows: with so few a job has hardly ever the tokens that make workers pay


@contextmanager
def workers_imported_early(flags: Mapping[str, Any]) -> Iterator[None]:
    """Stand around a command that samples. flags: what was typed, shaped like a recipe.

    Nothing is begun in a process that has imported torch: it has nothing to do meanwhile.
    """
    with closing(SERVER):
        if "torch" not in sys.modules and _may_have_workers(flags):
            SERVER.begin()
        yield


def _may_have_workers(flags: Mapping[str, Any]) -> bool:
    """Whether the job may be one of workers on this machine's CPU, for all that flags say."""
    machine, limit = flags.get("machine", {}), flags.get("dataset", {}).get("limit")
    workers = machine.get("workers")
    is_small = workers is None and limit is not None and limit <= _FEW
    return (
        available_cores() > 1
        and workers != 1
        and not is_small
        and machine.get("ray") is None
        and machine.get("tensor_parallel_size", 1) == 1
        and has_cpu_alone(machine.get("device", "auto"))
    )
