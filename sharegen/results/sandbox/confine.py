"""Taking away from the process that will run a program all that it does not need."""

from __future__ import annotations

import math
import os
import resource
import sys

from . import namespaces, seccomp
from .limits import MIB, OPEN_FILES, Limits

_INTERPRETER_MEMORY = 256 * MIB
_STACK = 64 * MIB
_PENDING_SIGNALS = 256  # and timers, which the user has a limited number of


def confine(limits: Limits, others: int, is_isolated: bool, is_counted: bool) -> None:
    """Limit this process and its children-to-be, and drop every privilege, for good.

    others: processes of the same user namespace that count towards its limit.
    is_counted: by a memory cgroup; else memory is denied that only such a group can count.
    """
    os.umask(0o077)
    # The supervisor counts the seconds of all processes. On a busy machine it comes late, and then
    # the system itself ends at least a single one.
    seconds = math.ceil(limits.cpu_seconds)
    wanted = {
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_FSIZE: (limits.disk, limits.disk),
        resource.RLIMIT_NOFILE: (OPEN_FILES, OPEN_FILES),
        resource.RLIMIT_CORE: (1, 1),  # 0 does not keep cores from a program that takes them
        resource.RLIMIT_STACK: (_STACK, _STACK),
    }
    if sys.platform == "linux":
        memory = limits.memory + _INTERPRETER_MEMORY
        wanted[resource.RLIMIT_AS] = (memory, memory)
        wanted[resource.RLIMIT_MSGQUEUE] = (0, 0)
        wanted[resource.RLIMIT_MEMLOCK] = (0, 0)
        wanted[resource.RLIMIT_SIGPENDING] = (_PENDING_SIGNALS, _PENDING_SIGNALS)
    if is_isolated:  # elsewhere this would count all the processes that the user has
        wanted[resource.RLIMIT_NPROC] = (limits.processes + others,) * 2
    for kind, (soft, hard) in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))
    if is_isolated:
        namespaces.drop_privileges()
        namespaces.own_proc_files(True)
        if not is_counted:
            namespaces.forbid_huge_pages()
        seccomp.install(is_counted)
