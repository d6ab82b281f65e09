"""The warmed parent: a fresh interpreter in namespaces of its own that forks once per program.

It imports what programs import, so that they need not, and holds nothing else: programs, inputs
and answers pass it by, on a socket that comes in for each program and goes straight to its
supervisor. It was started with an empty environment and never saw an expected value.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from _sitebuiltins import Quitter
from typing import Any, NoReturn

from . import namespaces as ns
from . import tree, wire
from .memory import MemoryGroup
from .process import keep_only
from .supervisor import Supervisor

PACKAGES = "/packages"
"""Where a program finds numpy, where it is installed."""

_USER = 1000
_NOBODY = 65534
_WARM = (
    *("array", "ast", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime"),
    *("decimal", "enum", "fractions", "functools", "hashlib", "heapq", "io", "itertools", "json"),
    *("math", "operator", "os", "queue", "random", "re", "statistics", "string", "struct", "sys"),
    *("threading", "time", "types", "typing"),
)


def main(control: int, *cgroup: int) -> None:
    """Serve on the descriptor `control` until the other side closes it.

    cgroup: descriptors of the memory cgroup to be in, where there is one.

    The first frame says how to isolate: {"isolation", "binds"}. The answer is {"is_counted":
    whether the cgroup could be joined} or {"error": why}. Then each byte that arrives brings one
    program's socket, and each that leaves says that a program is gone, with its processes and
    files.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whoever started us may have ignored it
    keep_only([0, 1, 2, control, *cgroup], os.sysconf("SC_OPEN_MAX"))
    control, *cgroup_here = range(3, 4 + len(cgroup))
    plan, _ = wire.receive(control)
    is_isolated = plan["isolation"] != "none"
    try:
        if plan["isolation"] == "namespaces":
            _leave_system(plan["binds"])
        elif plan["isolation"] == "bubblewrap" and os.getuid() == 0:
            tree.mount_proc()
        if is_isolated:
            _leave_user()
    except OSError as error:
        wire.send(control, {"error": str(error)})
        return
    group = _join(cgroup_here)
    _warm()
    wire.send(control, {"is_counted": group is not None})
    with contextlib.suppress(OSError), socket.socket(fileno=control) as sock:
        _serve(sock, is_isolated, group)


def _join(cgroup: list[int]) -> MemoryGroup | None:
    with contextlib.suppress(OSError):
        return MemoryGroup(cgroup) if cgroup else None
    return None


def _leave_system(binds: list[Any]) -> None:
    """New namespaces of every kind, and a file system that shows the read-only system alone.

    Root needs no user namespace here, and must not have one: it becomes nobody afterwards.
    """
    uid, gid = os.getuid(), os.getgid()
    kinds = ns.CLONE_NEWNS | ns.CLONE_NEWPID | ns.CLONE_NEWNET | ns.CLONE_NEWIPC | ns.CLONE_NEWUTS
    ns.unshare(kinds | ns.CLONE_NEWCGROUP | (ns.CLONE_NEWUSER if uid else 0))
    if uid:
        ns.map_user(uid, uid, gid)
    _continue_in_child()
    tree.build([(source, target) for source, target in binds])


def _leave_user() -> None:
    """A user namespace over everything so far, which locks its mounts; nobody instead of root.

    Root's own processes are not limited in number, and root owns files that only it may read.
    """
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        ns.own_proc_files(True)
    uid, gid = os.getuid(), os.getgid()
    ns.unshare(ns.CLONE_NEWUSER | ns.CLONE_NEWNS | ns.CLONE_NEWPID | ns.CLONE_NEWUTS)
    ns.map_user(_USER, uid, gid)
    ns.name_host("sandbox")
    ns.die_with_parent()  # again: new credentials have cleared it
    _continue_in_child()
    tree.mount_proc()


def _continue_in_child() -> None:
    """Go on as the first process of a new PID namespace; the old one waits and ends with it."""
    pid = os.fork()
    if pid == 0:
        ns.die_with_parent()
        return
    _, status = os.waitpid(pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _warm() -> None:
    sys.path[:] = [path for path in sys.path if path and path.startswith(sys.base_prefix)]
    sys.path.append(PACKAGES)
    sys.argv = ["program"]
    # Judges' Python has no limit on the digits of a number, and time is limited anyway.
    sys.set_int_max_str_digits(0)
    for name in _WARM:
        importlib.import_module(name)
    for name in ("exit", "quit"):  # the site module's, which a script expects
        setattr(builtins, name, Quitter(name, "Ctrl-D"))
    gc.collect()
    gc.freeze()


def _serve(control: socket.socket, is_isolated: bool, group: MemoryGroup | None) -> None:
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if is_isolated else -1
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        (channel,) = descriptors
        if is_isolated:
            ns.unshare(ns.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            control.close()
            _supervise(channel, is_isolated, group)
        os.close(channel)
        if is_isolated:
            ns.setns(own, ns.CLONE_NEWPID)
        os.waitpid(pid, 0)
        control.send(b".")


def _supervise(channel: int, is_isolated: bool, group: MemoryGroup | None) -> NoReturn:
    status = 1
    try:
        Supervisor(channel, is_isolated, group).serve()
        status = 0
    except (wire.Closed, BrokenPipeError):
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
