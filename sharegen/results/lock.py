"""One writer at a time, also on a file system that knows no locks.

The kernel's lock goes with the process, whatever ends it. Where a file system refuses it, as some
network mounts do, a file beside the one that is written names the writer's process and machine.
`SHAREGEN_LOCK=file` in the environment takes that way at once, for a file system whose locks fail
otherwise, hang, or hold on one machine alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from filelock import SoftFileLock, Timeout

from sharegen.common.remarks import remark
from sharegen.errors import JournalError, UsageError

VARIABLE = "SHAREGEN_LOCK"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
_PATIENCE = 0.5  # seconds: the file of a process that is gone is taken over at the second try


def hold(path: Path, descriptor: int) -> SoftFileLock | None:
    """Hold `path` against other writers until `let_go`.

    descriptor: of the file, open. Returns the lock where it is a file of its own. Raises
    JournalError where another process has it, and OSError where it cannot be locked at all.
    """
    if _by_file():
        return _soft(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise JournalError(
            f"{path}: another process is writing it: wait for that run to end, or choose another"
            " --output"
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        remark(
            f"{path}: its file system knows no locks ({error.strerror}): {_lock_path(path).name} "
            "beside it says who writes"
        )
        return _soft(path)
    return None


def refuse_held(path: Path) -> None:
    """Raises JournalError where another process writes `path`; several may ask at a time."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
    is_held = False
    try:
        if _by_file():
            is_held = _lock_path(path).exists()
        else:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        is_held = True
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise JournalError(
                f"{path}: cannot be locked: {error.strerror}: {VARIABLE}=file does without"
            ) from None
        is_held = _lock_path(path).exists()
    finally:
        os.close(descriptor)
    if is_held:
        raise JournalError(
            f"{path}: another process is writing it, and both would draw the same samples: wait for"
            " that run to end, or choose another --output"
        )


def let_go(descriptor: int, lock: SoftFileLock | None) -> None:
    """Close the file, and with it the kernel's lock; a lock that is a file goes last."""
    os.close(descriptor)
    if lock is not None:
        lock.release()


def _by_file() -> bool:
    """Whether the environment asks for locks that are files."""
    given = os.environ.get(VARIABLE, "")
    if given not in ("", "file"):
        raise UsageError(f"{VARIABLE}={given:.40}: it is file, or not set")
    return bool(given)


def _soft(path: Path) -> SoftFileLock:
    lock = SoftFileLock(_lock_path(path), thread_local=False)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        raise JournalError(
            f"{path}: another process is writing it{_holder(lock)}: wait for that run to end, or"
            f" remove {lock.lock_file} if there is none"
        ) from None
    return lock


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _holder(lock: SoftFileLock) -> str:
    """The process and the machine that the lock's file names."""
    try:
        names = Path(lock.lock_file).read_text(errors="replace").split()[:2]
    except OSError:  # released just now
        return ""
    return f" (process {names[0]} on {names[1]})" if len(names) == 2 else ""
