"""The memory cgroup that a sandbox's processes are counted in, where this process may have one.

Both versions are known. In version 1 a group may hold processes and groups, so ours lies in the one
that this process is in. In version 2 that is so for the topmost group only; elsewhere ours lies
beside it, unless the memory of our own group is limited, which ours would leave.
Source: Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path


def _named(*files: str) -> tuple[str, ...]:
    return ("cgroup.procs", *(f"memory.{name}" for name in files))


_FILES = {  # by version: who is in it, bytes in use, their limit, what they are, what happened
    1: _named("usage_in_bytes", "limit_in_bytes", "stat", "oom_control"),
    2: _named("current", "max", "stat", "events"),
}
_MODES = (os.O_WRONLY, os.O_RDONLY, os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)
_NO_SWAP = {1: "memory.swappiness", 2: "memory.swap.max"}
_PREFIX = "sharegen-"
_REMOVAL_SECONDS = 5.0
_numbers = itertools.count()


class Cgroup:
    """A new memory cgroup without processes. Raises OSError where there can be none.

    descriptors: its open files, in the order of `memory.Group`. Who has these may join it, whatever
        the privileges and whatever is mounted.
    """

    def __init__(self, parent: Path, version: int):
        _remove_left(parent)
        self._path = parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        self._path.mkdir()
        self.descriptors: list[int] = []
        try:
            for name, mode in zip(_FILES[version], _MODES, strict=True):
                self.descriptors.append(os.open(self._path / name, mode | os.O_CLOEXEC))
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap
                (self._path / _NO_SWAP[version]).write_text("0")
        except OSError:
            self.remove()
            raise

    def close(self) -> None:
        """Close its files here, once those who count have them."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def remove(self) -> None:
        """Remove it, as soon as the last of its processes is gone."""
        self.close()
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while time.monotonic() < deadline:
            try:
                self._path.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
            else:
                return


def create() -> Cgroup | None:
    """A group of our own, or None where there can be none."""
    for version, parent in _places(Path("/proc/self")):
        with contextlib.suppress(OSError):
            return Cgroup(parent, version)
    return None


def _places(process: Path) -> Iterator[tuple[int, Path]]:
    """Yield (version, group) in which ours may lie, for a process whose folder in /proc is
    given.
    """
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        number, controllers, path = line.split(":", 2)
        version = 2 if number == "0" else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        own = _folder(mounts, version, path)
        if own is None:
            continue
        if version == 1 or _counts_memory(own):
            yield version, own
        elif _first_word(own / "memory.max") == "max" and _counts_memory(own.parent):
            yield version, own.parent


def _folder(mounts: list[str], version: int, path: str) -> Path | None:
    """Where the group `path` of the memory controller's hierarchy is mounted."""
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if version == 2 and kind != "cgroup2":
            continue
        if version == 1 and (kind != "cgroup" or "memory" not in options.split(",")):
            continue
        root, mount_point = before.split(" ")[3:5]
        if Path(path).is_relative_to(root):
            return Path(mount_point) / Path(path).relative_to(root)
    return None


def _counts_memory(group: Path) -> bool:
    """Whether the memory of groups in this one (of version 2) is counted."""
    try:
        return "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _first_word(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _remove_left(parent: Path) -> None:
    """Remove the groups of processes that were killed before they could."""
    for group in parent.glob(f"{_PREFIX}*-*"):
        pid = group.name.removeprefix(_PREFIX).partition("-")[0]
        if not os.path.exists(f"/proc/{pid}"):
            with contextlib.suppress(OSError):
                group.rmdir()
