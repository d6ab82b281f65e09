"""The file system that a program sees: a read-only system and nothing of the user's."""

from __future__ import annotations

import os
from collections.abc import Sequence

from . import namespaces as ns

_OLD = "/old"
DEVICES = ("null", "full", "random", "urandom")
"""What a program finds in /dev. Mapping /dev/zero would give it memory that nothing counts."""

DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}

HOME, TEMPORARY, SHARED_MEMORY = "/home", "/tmp", "/dev/shm"
PRIVATE = (HOME, TEMPORARY, SHARED_MEMORY)
"""The folders that each program gets anew, empty and of limited size."""


def build(binds: Sequence[tuple[str, str]]) -> None:
    """Leave the current file system for a new one that shows only `binds`, read-only.

    binds: (path now, path then); a link stays a link. The calling process is the first of a new
    PID namespace and alone in a new mount namespace. Raises OSError.
    """
    ns.mount("none", "/", None, ns.MS_REC | ns.MS_PRIVATE)
    ns.mount("tmpfs", "/tmp", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "mode=0755,size=1m")
    os.mkdir("/tmp" + _OLD)
    ns.pivot_root("/tmp", "/tmp" + _OLD)
    os.chdir("/")
    for source, target in binds:
        _show(source, target)
    os.mkdir("/proc")
    mount_proc()
    for folder in ("/dev", *PRIVATE):
        os.mkdir(folder)
    for name in DEVICES:
        open(f"/dev/{name}", "x").close()
        ns.mount(f"{_OLD}/dev/{name}", f"/dev/{name}", None, ns.MS_BIND)
        ns.make_read_only(f"/dev/{name}", devices=True)
    for name, target in DEVICE_LINKS.items():
        os.symlink(target, f"/dev/{name}")
    ns.detach(_OLD)
    os.rmdir(_OLD)
    ns.mount("none", "/", None, ns.MS_REMOUNT | ns.MS_BIND | ns.MS_RDONLY | ns.MS_NOSUID)


def _show(source: str, target: str) -> None:
    old = _OLD + source
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(old):
        os.symlink(os.readlink(old), target)
        return
    if os.path.isdir(old):
        os.mkdir(target)
    else:
        open(target, "x").close()
    ns.mount(old, target, None, ns.MS_BIND | ns.MS_REC)
    ns.make_read_only(target)


def mount_proc(flags: int = 0, options: str = "") -> None:
    """A view of the PID namespace that the calling process is in."""
    ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC | flags, options)


def make_private(disk: int) -> None:
    """Give the program that is about to run folders of its own, and a /proc of its own.

    disk: bytes, of each folder. Raises OSError.
    """
    ns.unshare(ns.CLONE_NEWNS)
    ns.mount("none", "/", None, ns.MS_REC | ns.MS_PRIVATE)
    flags = ns.MS_NOSUID | ns.MS_NODEV
    options = f"mode=0700,size={disk},nr_inodes=10000"
    ns.mount("tmpfs", HOME, "tmpfs", flags, options)
    ns.mount("tmpfs", TEMPORARY, "tmpfs", flags, options)
    ns.mount(TEMPORARY, SHARED_MEMORY, None, ns.MS_BIND)
    mount_proc(ns.MS_RDONLY, "subset=pid")
    os.chdir(HOME)
