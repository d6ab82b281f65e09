"""How much memory a program's processes hold together, as their supervisor sees it.

A cgroup counts everything but what lies in sockets. Where there is none, it is added up from what
the kernel says about each process. Pages in which no process has a part any more would be missing
there: of shared anonymous memory, and of huge pages. So programs have neither (see `seccomp.py`).
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence

from . import namespaces as ns
from .limits import OPEN_FILES, Limits
from .tree import HOME, TEMPORARY

_MAPPING = 256  # bytes of the kernel's for each mapping of a process
_MOST_MAPPINGS = 65_530  # vm.max_map_count
_PIPE = 64 << 10  # a pipe keeps the size it has at first


def _socket_size() -> int:
    """Return the bytes that one end of a pair of sockets holds at most: its buffer, and one message
    more.
    """
    ends = socket.socketpair()
    with ends[0], ends[1]:
        return ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) + (64 << 10)


_SOCKET = _socket_size()


class MemoryGroup:
    """The memory cgroup that this process and all that it starts are in from now on.

    descriptors: of its files, open: processes, usage, limit, statistics, events. Raises OSError
        where this process cannot join it.
    """

    def __init__(self, descriptors: Sequence[int]):
        processes, self._usage, self._limit, self._statistics, self._events = descriptors
        os.write(processes, b"0")
        self._proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._before = self._kills = 0

    def begin(self, limits: Limits) -> None:
        """Count from here on: what is held already is not the program's.

        The group ends a process that takes more than the limit and what the supervisor may hold
        of input and output. Before it comes to that, `exceeds` has mostly seen it.
        """
        self._before = self._held()
        self._kills = self._killed()
        most = self._before + limits.memory + 4 * limits.output
        os.pwrite(self._limit, str(most).encode(), 0)

    def offer_victim(self) -> None:
        """Where a process has to end, let it be this one rather than its supervisor."""
        ns.own_proc_files(True)
        file = os.open("self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._proc)
        os.write(file, b"1000")
        os.close(file)

    def exceeds(self, limit: int) -> bool:
        """Whether the program holds more than `limit` bytes, or a process ended for that."""
        if self._killed() > self._kills:
            return True
        used = int(os.pread(self._usage, 64, 0)) - self._before
        pids = others()
        if used + len(pids) * OPEN_FILES * _SOCKET <= limit:
            return False
        pids = [pid for pid in pids if _resident(pid)]
        return self._held() - self._before + _in_descriptors(pids, pipe=0) > limit

    def _held(self) -> int:
        """Return the bytes in use, without files that are merely cached."""
        said = dict(line.split() for line in os.pread(self._statistics, 1 << 14, 0).splitlines())
        files = said[b"file"] if b"file" in said else said[b"cache"]  # version 2, version 1
        return int(os.pread(self._usage, 64, 0)) - int(files) + int(said[b"shmem"])

    def _killed(self) -> int:
        said = dict(line.split() for line in os.pread(self._events, 4096, 0).splitlines())
        return int(said[b"oom_kill"])


class MemorySum:
    """What the processes of this PID namespace hold, besides this one, added up."""

    def exceeds(self, limit: int) -> bool:
        """Whether that is more than `limit` bytes.

        To know exactly takes time, so it is asked only where it could be too much.
        """
        held = {pid: _resident(pid) for pid in others()}
        pids = [pid for pid in held if held[pid]]  # the rest has ended
        files = sum(map(_on_disk, (HOME, TEMPORARY)))
        rest = _MOST_MAPPINGS * _MAPPING + OPEN_FILES * _SOCKET
        if files + sum(held.values()) + len(pids) * rest <= limit:
            return False
        return files + sum(map(_own, pids)) + _in_descriptors(pids, _PIPE) > limit


def others() -> list[str]:
    """The processes of this PID namespace besides its first one, which is the caller."""
    return [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _on_disk(folder: str) -> int:
    """Return the bytes in a folder that is a file system in memory."""
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


def _resident(pid: str) -> int:
    """Return the bytes of a process in no file, alone or with others, and page tables; 0 once it
    ended.
    """
    return _kibibytes(f"/proc/{pid}/status", ("RssAnon:", "VmSwap:", "VmPTE:"))


def _own(pid: str) -> int:
    """Return the bytes of a process in no file, its share of what others have too, with its page
    tables.

    A process can keep that to itself; then all that it has counts, and the most it might.
    """
    shared = _kibibytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "SwapPss:"))
    if not shared:
        return _resident(pid) + _MOST_MAPPINGS * _MAPPING
    mappings = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as file:
        mappings = sum(1 for _ in file)
    return shared + _kibibytes(f"/proc/{pid}/status", ("VmPTE:",)) + mappings * _MAPPING


def _kibibytes(path: str, fields: tuple[str, ...]) -> int:
    """The sum of these fields, in bytes; 0 where the file cannot be read."""
    with contextlib.suppress(OSError), open(path) as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(fields)) << 10
    return 0


def _in_descriptors(pids: Sequence[str], pipe: int) -> int:
    """The most that may lie in pipes (`pipe` bytes in each) and in sockets."""
    seen: set[str] = set()
    hidden = 0
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            hidden += OPEN_FILES * _SOCKET
            continue
        except FileNotFoundError:
            continue
        for name in names:
            with contextlib.suppress(OSError):
                seen.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    pipes = sum(link.startswith("pipe:") for link in seen)
    return hidden + pipes * pipe + sum(link.startswith("socket:") for link in seen) * _SOCKET
