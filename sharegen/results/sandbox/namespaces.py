"""The Linux calls that isolation is made of, through libc (Python 3.11 has no os.unshare)."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_THP_DISABLE = 41
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522

_SYS_MOUNT_SETATTR = 442  # the same number on every architecture
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _text(path: str | None) -> bytes | None:
    return None if path is None else os.fsencode(path)


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` names for new ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(descriptor: int, kind: int) -> None:
    """Enter (for PID: let children enter) the namespace that the descriptor refers to."""
    _check(_libc.setns(descriptor, kind), "setns")


def map_user(inside: int, uid: int, gid: int) -> None:
    """Be, in a new user namespace, user and group `inside`, which outside are `uid` and `gid`."""
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{inside} {uid} 1"),
        ("gid_map", f"{inside} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def name_host(name: str) -> None:
    """Call, in a new UTS namespace, the machine so, and give it no domain."""
    _check(_libc.sethostname(name.encode(), len(name)), "sethostname")
    _check(_libc.setdomainname(b"", 0), "setdomainname")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    _check(
        _libc.mount(
            _text(source), _text(target), _text(kind), ctypes.c_ulong(flags), options.encode()
        ),
        f"mount {target}",
    )


def detach(target: str) -> None:
    """Unmount everything at `target` at once."""
    _check(_libc.umount2(_text(target), _MNT_DETACH), f"umount {target}")


def make_read_only(target: str, devices: bool = False) -> None:
    """Every mount at and under `target`: read-only, no set-user-id, no devices. Linux 5.12."""
    attributes = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | (0 if devices else _MOUNT_ATTR_NODEV)
    change = struct.pack("=QQQQ", attributes, 0, 0, 0)
    _check(
        _libc.syscall(_SYS_MOUNT_SETATTR, -100, _text(target), _AT_RECURSIVE, change, len(change)),
        f"mount_setattr {target}",
    )


def pivot_root(new_root: str, old_root: str) -> None:
    number = _SYS_PIVOT_ROOT[os.uname().machine]
    _check(_libc.syscall(number, _text(new_root), _text(old_root)), "pivot_root")


def die_with_parent() -> None:
    """SIGKILL for this process when its parent ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, 9, 0, 0, 0), "prctl")


def become_subreaper() -> None:
    """Descendants whose parents end become this process's children."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def own_proc_files(owned: bool) -> None:
    """Whether /proc/self belongs to this process's user, or to root and so to nobody in here."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, int(owned), 0, 0, 0), "prctl")


def drop_privileges() -> None:
    """Give up every capability for good, and whatever an exec could bring back."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    nothing = struct.pack("=6I", 0, 0, 0, 0, 0, 0)
    _check(_libc.syscall(_SYS_CAPSET[os.uname().machine], header, nothing), "capset")
    forbid_new_privileges()


def forbid_new_privileges() -> None:
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def forbid_huge_pages() -> None:
    """Pages of the usual size only, here and in children. A huge one is held whole for a part."""
    _check(_libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0), "prctl")
