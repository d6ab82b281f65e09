"""A filter on the system calls of a program: the second wall behind the namespaces.

It denies what no solution of a programming problem needs and what kernels had holes in: new
namespaces and mounts, tracing, sockets, memory that is not counted anywhere else (System V shared
memory, memfd), keys, BPF, io_uring, splicing, locks on files. Source: seccomp(2),
Documentation/userspace-api/seccomp_filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW = 0x7FFF0000
_DENY = 0x00050000 | errno.EPERM
_ABSENT = 0x00050000 | errno.ENOSYS
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET

_EVERYWHERE = (
    # io_uring_setup, io_uring_enter, io_uring_register; open_tree ... fspick; pidfd_getfd;
    # process_madvise; mount_setattr; memfd_secret
    *(425, 426, 427),
    *range(428, 434),
    *(438, 440, 442, 447),
)
_X86_64 = (
    # ptrace, process_vm_readv, process_vm_writev; unshare, setns, mount, umount2, pivot_root,
    # chroot
    *(101, 310, 311, 272, 308, 165, 166, 155, 161),
    # socket; shmget, semget, msgget, mq_open, memfd_create; add_key, request_key, keyctl
    *(41, 29, 64, 68, 240, 319, 248, 249, 250),
    # bpf, perf_event_open, userfaultfd, kexec_load, name_to_handle_at, open_by_handle_at,
    # fanotify_init; syslog; splice, tee, vmsplice; flock, which locks files of others
    *(321, 298, 323, 246, 303, 304, 300),
    *(103, 275, 276, 278, 73),
)
_AARCH64 = (
    *(117, 270, 271, 97, 268, 40, 39, 41, 51),
    *(198, 194, 190, 186, 180, 279, 217, 218, 219),
    *(280, 241, 282, 104, 264, 265, 262),
    *(116, 76, 77, 75, 32),
)
_CLONE3 = 435
_X32 = 0x40000000

_MACHINES = {  # audit architecture, denied calls, clone
    "x86_64": (0xC000003E, _X86_64, 56),
    "aarch64": (0xC00000B7, _AARCH64, 220),
}

available = os.uname().machine in _MACHINES


def install() -> None:
    """Put the filter on this process and all its children, for good (needs no_new_privs)."""
    program = _program(os.uname().machine)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions and where they are
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"seccomp: {os.strerror(number)}")


def _program(machine: str) -> bytes:
    architecture, denied, clone = _MACHINES[machine]
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_ABOVE, 0, 1, _X32),
        (_RETURN, 0, 0, _DENY),
        # glibc falls back from clone3, whose flags a filter cannot see, to clone
        (_JUMP_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ABSENT),
    ]
    for number in (*denied, *_EVERYWHERE):
        steps += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    steps += [
        (_JUMP_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *step) for step in steps)
