"""A filter on the system calls of a program: the second wall behind the namespaces.

It denies what no solution of a programming problem needs and what kernels had faults in: new
namespaces and mounts, tracing, sockets, keys, BPF, io_uring, splicing, rules of Landlock, and every
call that is newer than this list. It denies memory that is counted nowhere (System V shared memory,
memfd, huge pages from the system's pool, larger pipes and sockets), what the whole system has a
limited number of (asynchronous input and output), locks on files and watching files, which others
use, too, leaving the core that a program was given, changing the priority of processes or the
limits of others, and handling SIGCHLD: a child whose end is ignored would leave without its CPU
time being counted. Pairs of sockets are of the kind that stays on this machine alone. The limit on
cores stays as it is: see `confine.py`. Where no memory cgroup counts, it denies shared anonymous
memory as well, whose pages stay when they are unmapped. Source: seccomp(2),
Documentation/userspace-api/seccomp_filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from dataclasses import dataclass

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW = 0x7FFF0000
_DENY = 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _ABOVE = 0x15, 0x25
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data
_X32 = 0x40000000

_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_FCNTL_DENIED = (
    # F_SETLK, F_SETLKW, and those of open files; F_SETLEASE, F_NOTIFY; F_SETPIPE_SZ; F_SET_RW_HINT
    # and that of an open file
    *(6, 7, 37, 38, 1024, 1026, 1031, 1036, 1038),
)
_PR_SET_THP_DISABLE = 41
_AF_UNIX = 1
_RLIMIT_CORE = 4
_NEWEST = 463
"""System calls from here on came after this list was made (Linux 6.13)."""

_EVERYWHERE = (
    # io_uring_setup, io_uring_enter, io_uring_register; open_tree ... fspick; pidfd_getfd;
    # process_madvise; mount_setattr; landlock_create_ruleset, landlock_add_rule,
    # landlock_restrict_self; memfd_secret; process_mrelease; cachestat; statmount, listmount,
    # lsm_get_self_attr, lsm_set_self_attr, lsm_list_modules
    *(425, 426, 427),
    *range(428, 434),
    *(438, 440, 442, 444, 445, 446, 447, 448, 451),
    *range(457, 462),
)
_X86_64 = (
    # ptrace, process_vm_readv, process_vm_writev; unshare, setns, mount, umount2, pivot_root,
    # chroot
    *(101, 310, 311, 272, 308, 165, 166, 155, 161),
    # socket, setsockopt; shmget, semget, msgget, mq_open, memfd_create; add_key, request_key,
    # keyctl
    *(41, 54, 29, 64, 68, 240, 319, 248, 249, 250),
    # bpf, perf_event_open, userfaultfd, kexec_load, name_to_handle_at, open_by_handle_at
    *(321, 298, 323, 246, 303, 304),
    # syslog; splice, tee, vmsplice; flock, which locks files of others; io_setup
    *(103, 275, 276, 278, 73, 206),
    # fanotify_init, fanotify_mark, inotify_init1, inotify_add_watch, inotify_init;
    # sched_setaffinity
    *(300, 301, 294, 254, 253, 203),
    # setpriority, sched_setparam, sched_setscheduler, sched_setattr, ioprio_set; migrate_pages,
    # move_pages; kcmp
    *(141, 142, 144, 314, 251, 256, 279, 312),
)
_AARCH64 = (
    *(117, 270, 271, 97, 268, 40, 39, 41, 51),
    *(198, 208, 194, 190, 186, 180, 279, 217, 218, 219),
    *(280, 241, 282, 104, 264, 265),
    *(116, 76, 77, 75, 32, 0),
    *(262, 263, 26, 27, 122),
    *(140, 118, 119, 274, 30, 238, 239, 272),
)
_CLONE3 = 435


@dataclass(frozen=True)
class _Machine:
    """The audit architecture, and numbers of system calls."""

    architecture: int
    denied: tuple[int, ...]
    clone: int
    mmap: int
    fcntl: int
    prctl: int
    sigaction: int
    socketpair: int
    setrlimit: int
    prlimit: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, _X86_64, 56, 9, 72, 157, 13, 53, 160, 302),
    "aarch64": _Machine(0xC00000B7, _AARCH64, 220, 222, 25, 167, 134, 199, 164, 261),
}

_Step = tuple[int, int, int, int]


def install(is_counted: bool) -> None:
    """Put the filter on this process and all its children, for good (needs no_new_privs).

    is_counted: whether a memory cgroup counts what they hold.
    """
    program = _program(_MACHINES[os.uname().machine], is_counted)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions and where they are
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def _program(machine: _Machine, is_counted: bool) -> bytes:
    steps: list[_Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.architecture),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER),
        (_ABOVE, 0, 1, _X32 - 1),
        (_RETURN, 0, 0, _DENY),
        # glibc falls back from clone3, whose flags a filter cannot see, to clone
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ABSENT),
        (_ABOVE, 0, 1, _NEWEST - 1),
        (_RETURN, 0, 0, _ABSENT),
    ]
    for number in (*machine.denied, *_EVERYWHERE):
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    steps += _deny(machine.clone, (0, _has_any(_NEW_NAMESPACES)))
    steps += _deny(machine.sigaction, (0, _is(signal.SIGCHLD)))
    steps += _deny(machine.fcntl, *((1, _is(command)) for command in _FCNTL_DENIED))
    steps += _deny(machine.socketpair, (0, _is_not(_AF_UNIX)))
    steps += _deny(machine.setrlimit, (0, _is(_RLIMIT_CORE)))
    steps += _deny(machine.prlimit, (0, _is_not(0)), (1, _is(_RLIMIT_CORE)))
    mappings = [(3, _has_any(_MAP_HUGETLB))]
    if not is_counted:
        mappings.append((3, _has_all(_MAP_SHARED | _MAP_ANONYMOUS)))
        steps += _deny(machine.prctl, (0, _is(_PR_SET_THP_DISABLE)))
    steps += _deny(machine.mmap, *mappings)
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def _deny(number: int, *tests: tuple[int, list[_Step]]) -> list[_Step]:
    """Deny a system call where one of its arguments passes a test, which ends in a jump over one.

    tests: the number of the argument with each.
    """
    body: list[_Step] = []
    for argument, test in tests:
        # the lower half of the argument, which is all of what these calls look at
        body += [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), *test, (_RETURN, 0, 0, _DENY)]
    body.append((_RETURN, 0, 0, _ALLOW))
    return [(_EQUAL, 0, len(body), number), *body]


def _is(value: int) -> list[_Step]:
    return [(_EQUAL, 0, 1, value)]


def _is_not(value: int) -> list[_Step]:
    return [(_EQUAL, 1, 0, value)]


def _has_any(bits: int) -> list[_Step]:
    return [(_AND, 0, 0, bits), (_ABOVE, 0, 1, 0)]


def _has_all(bits: int) -> list[_Step]:
    return [(_AND, 0, 0, bits), (_EQUAL, 0, 1, bits)]
