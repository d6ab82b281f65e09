"""Workers' imports, begun while the command itself imports what it needs to read its job.

Whether a job on a CPU gets workers is known when its rows are read, half a second after its flags.
By then the process that workers are copied from has imported a fifth of what they run. Where the
job gets none, or what was typed is wrong, that process is ended.

To import the command line, which reads the flags, takes a sixth of a second on a slow machine.
Where none of those that decide is typed, nobody waits for that either.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from sharegen.common.cores import available_cores
from sharegen.engine.parallel.copies import SERVER
from sharegen.engine.parallel.imports import has_cpu_alone
from sharegen.errors import SharegenError

_FEW = 50  # rows: with so few a job has hardly ever the tokens that make workers pay

_DECIDING = frozenset(
    ("--help", "-h", "--show-config", "--set", "--limit", "--workers", "--device", "--ray",
     "--tensor-parallel-size")
)  # fmt: skip


@contextmanager
def workers_imported_at_once(arguments: Sequence[str]) -> Iterator[None]:
    """Stand around a command line that samples. arguments: what was typed and nobody has read.

    What goes wrong here is not told, since nothing of the command line can do it yet: the command
    begins them again, and tells.
    """
    with closing(SERVER):
        if not _DECIDING & {argument.partition("=")[0] for argument in arguments}:
            with suppress(SharegenError, OSError):
                _begin({})
        yield


@contextmanager
def workers_imported_early(flags: Mapping[str, Any]) -> Iterator[None]:
    """Stand around a command that samples. flags: what was typed, shaped like a recipe."""
    with closing(SERVER):
        _begin(flags)
        yield


def _begin(flags: Mapping[str, Any]) -> None:
    """Begin where it may be of use: a process that has torch has nothing to do meanwhile."""
    if "torch" not in sys.modules and _may_have_workers(flags):
        SERVER.begin()


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
