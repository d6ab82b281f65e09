"""One writer at a time, also on a file system that knows no locks.

The kernel's lock goes with the process, whatever ends it. Where a file system refuses it, as some
network mounts do, a file in the hidden folder names the writer's process and machine.
`SHAREGEN_LOCK=file` in the environment takes that way at once, for a file system whose locks fail
otherwise, hang, or hold on one machine alone.

Who has the kernel's lock leaves a file, too, of another name: so that of two writers that take
different ways each sees the other. It says nothing to those who ask the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sharegen.common.log import log
from sharegen.errors import JournalError, UsageError
from sharegen.results.journal.places import hidden, make_folder

if TYPE_CHECKING:
    from filelock import SoftFileLock

VARIABLE = "SHAREGEN_LOCK"
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL)
_PATIENCE = 0.5  # seconds: the file of a process that is gone is taken over at the second try
_START_SECONDS = 10.0  # that another writer of the same job may take to start

_BY_FILE = ".lock"  # what files are called here, behind the name of what is written
_BY_KERNEL = ".flock"
_STARTING = ".starting"


@dataclass(frozen=True)
class Lock:
    """What says that this process writes a file: beside the kernel's lock a mark, or a file alone.

    file: where locks are files; mark: where the kernel has the lock.
    """

    file: SoftFileLock | None = None
    mark: Path | None = None

    def release(self) -> None:
        if self.file is not None:
            self.file.release()
        if self.mark is not None:
            with contextlib.suppress(OSError):
                self.mark.unlink()


def hold(path: Path, descriptor: int) -> Lock:
    """Hold `path` against other writers until `let_go`.

    descriptor: of the file, open. Raises JournalError where another process has it, and OSError
    where it cannot be locked at all.
    """
    file, mark = _path(path, _BY_FILE), _path(path, _BY_KERNEL)
    if _by_file() or not _lock(path, descriptor):
        make_folder(file)
        lock = Lock(file=_soft(path))
        if _has_mark(mark):
            lock.release()
            raise _refused(path, mark)
        return lock
    lock = Lock(mark=_leave(mark))
    if os.path.lexists(file):
        try:
            _soft(path).release()  # of a writer that is gone
        except BaseException:
            lock.release()
            raise
    return lock


def is_held(path: Path) -> bool:
    """Whether another process writes `path`; several may ask at a time.

    Raises JournalError where that cannot be told.
    """
    by_file = _by_file()
    if not by_file:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise JournalError(f"{path}: cannot be read: {error.strerror}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise JournalError(
                    f"{path}: cannot be locked: {error.strerror}: {VARIABLE}=file does without"
                ) from None
            by_file = True
        finally:
            os.close(descriptor)
    return _has_lock_file(path) or (by_file and _has_mark(_path(path, _BY_KERNEL)))


def seems_held(path: Path) -> bool:
    """Whether somebody left word of writing `path`; unlike `is_held`, nobody is held up."""
    return _has_mark(_path(path, _BY_KERNEL)) or os.path.lexists(_path(path, _BY_FILE))


def let_go(descriptor: int, lock: Lock) -> None:
    """Close the file, and with it the kernel's lock; its mark goes before, as others may come."""
    if lock.mark is not None:
        lock.release()
    os.close(descriptor)
    if lock.file is not None:
        lock.release()


@contextlib.contextmanager
def starting(path: Path) -> Iterator[None]:
    """Let those who start to write journals of one job do so one after the other.

    path: of the whole job. Each holds its own journal before it looks at the others', so that two
    never write the same. But for this, two that start at once might refuse each other.
    """
    turn = None
    if not _by_file():
        with contextlib.suppress(OSError):
            turn = _await_turn(_path(path, _STARTING))
    try:
        yield
    finally:
        if turn is not None:
            with contextlib.suppress(OSError):
                _path(path, _STARTING).unlink()
            os.close(turn)


def _await_turn(path: Path) -> int:
    """A descriptor of the file, locked; after some seconds it is not waited for."""
    make_folder(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            break
        else:
            break
    return descriptor


def _lock(path: Path, descriptor: int) -> bool:
    """Take the kernel's lock; False where the file system has none."""
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
        log(
            f"{path}: its file system knows no locks ({error.strerror}): "
            f"{_path(path, _BY_FILE)} says who writes"
        )
        return False
    return True


def _by_file() -> bool:
    """Whether the environment asks for locks that are files."""
    given = os.environ.get(VARIABLE, "")
    if given not in ("", "file"):
        raise UsageError(f"{VARIABLE}={given:.40}: it is file, or not set")
    return bool(given)


def _path(path: Path, kind: str) -> Path:
    return hidden(path.with_name(path.name + kind))


def _soft(path: Path) -> SoftFileLock:
    from filelock import SoftFileLock, Timeout  # few file systems need it

    lock = SoftFileLock(_path(path, _BY_FILE), thread_local=False)
    try:
        lock.acquire(timeout=_PATIENCE)
    except Timeout:
        raise _refused(path, Path(lock.lock_file)) from None
    return lock


def _has_lock_file(path: Path) -> bool:
    """Whether a process that may still be there holds it by a file."""
    if not os.path.lexists(_path(path, _BY_FILE)):
        return False
    try:
        _soft(path).release()
    except (JournalError, OSError):
        return True
    return False


def _leave(mark: Path) -> Path | None:
    """Say that this process has the kernel's lock; None where there is no room to say it.

    A mark that is there is of a process that is gone, as its lock is.
    """
    try:
        make_folder(mark)
        mark.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(mark, flags, 0o666)
        try:
            os.write(descriptor, f"{os.getpid()}\n{_machine()}\n".encode())
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return mark


def _has_mark(mark: Path) -> bool:
    """Whether a process that may still be there has the kernel's lock."""
    try:
        pid, machine = mark.read_text().split("\n")[:2]
        if machine == _machine():
            os.kill(int(pid), 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, OverflowError):
        return True
    return True


def _machine() -> str:
    """Where a process's number is that of one process: a container has numbers of its own."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def _refused(path: Path, said_by: Path) -> JournalError:
    try:
        names = said_by.read_text(errors="replace").split()[:2]
    except OSError:  # released just now
        names = []
    holder = f" (process {names[0]} on {names[1]})" if len(names) == 2 else ""
    return JournalError(
        f"{path}: another process is writing it{holder}: wait for that run to end, or remove"
        f" {said_by} if there is none"
    )
