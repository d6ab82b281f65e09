"""A file that lines are appended to, by this process alone: a journal, or the scores of one.

A line is one `write` to a file opened for appending, straight to the kernel: a killed process
loses nothing that it appended. Nobody else may change the file meanwhile. Where somebody does (an
editor saves it, `sed -i` replaces it, a clean-up deletes it), appending goes on into a file that
nobody will see again, or behind lines that are gone: so the file's identity and length are looked
at, and what was written and is not there any more is kept in a file beside it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sharegen.common.files import make_folders, sync_folder
from sharegen.errors import JournalError
from sharegen.results.journal.lock import VARIABLE, Lock, hold, let_go

_IN_MEMORY = 64 << 20  # bytes of lines that are kept in memory, before they go to an unnamed file
_TRIES = 10
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


class Changed(JournalError):
    """Somebody else changed the file; the message says what is kept where."""


class AppendedFile:
    """A file open for appending, held against other writers until `close`.

    size: bytes that it has to have; `cut` says it anew where the end is to be dropped.
    is_new: whether opening made it.
    """

    def __init__(
        self, path: Path, descriptor: int, lock: Lock, is_new: bool, has_identity: bool
    ) -> None:
        """Open it. has_identity: whether the file system tells of a path which file it leads to."""
        self.path = path
        self.is_new = is_new
        self._has_identity = has_identity
        self.size = os.fstat(descriptor).st_size
        self._descriptor: int | None = descriptor
        self._lock = lock
        # What this process appended: after a change nothing else may have it any more.
        self._kept: IO[bytes] | None = None

    @classmethod
    def open(cls, path: Path, *, follow: bool = True) -> AppendedFile:
        """Open the file, or make it, and hold it.

        follow: whether it may be a symbolic link, as one that the user named may.
        Raises JournalError where it cannot be written or another process holds it.
        """
        for left in reversed(range(_TRIES)):
            descriptor, is_new = _open(path, follow)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise JournalError(f"{path}: is not a regular file: choose another --output")
                if is_new:
                    sync_folder(path.parent)
                lock = hold(path, descriptor)
            except OSError as error:
                os.close(descriptor)
                raise JournalError(
                    f"{path}: cannot be locked: {error.strerror}: choose an --output on a local"
                    f" disk, or set {VARIABLE}=file"
                ) from error
            except BaseException:
                os.close(descriptor)
                raise
            has_identity = _is_at(path, descriptor)
            if has_identity or not left:
                return cls(path, descriptor, lock, is_new, has_identity)
            let_go(descriptor, lock)  # who had it until now has removed it
        raise AssertionError

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    @property
    def descriptor(self) -> int:
        assert self._descriptor is not None, f"{self.path} is closed"
        return self._descriptor

    def cut(self, size: int) -> None:
        """Drop what comes after so many bytes. Raises OSError."""
        os.ftruncate(self.descriptor, size)
        self.size = size

    def append(self, line: bytes) -> None:
        """Write one line whole, or nothing of it.

        Raises OSError where that fails, and Changed where somebody else changed the file's length.
        """
        try:
            if os.fstat(self.descriptor).st_size != self.size:
                raise self.changed()
            written = os.write(self.descriptor, line)
            while written < len(line):  # a disk that fills up takes a part first, then fails
                written += os.write(self.descriptor, line[written:])
        except OSError as error:
            if error.errno == errno.ESTALE:
                raise self.changed() from error
            with contextlib.suppress(OSError):  # else the next to open it does
                os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(line)
        self._keep(line)

    def sync(self) -> None:
        """Make what was appended durable. Raises OSError."""
        os.fsync(self.descriptor)

    def is_there(self) -> bool:
        """Whether the path still leads to this file, and nothing that was appended is cut off.

        May be asked while another thread appends. Raises OSError where it cannot be told.
        """
        size = self.size
        try:
            if os.fstat(self.descriptor).st_size < size:
                return False
            return not self._has_identity or _is_at(self.path, self.descriptor)
        except OSError as error:
            if error.errno == errno.ESTALE:
                return False
            raise

    def check(self) -> None:
        """Raises Changed where the file is not as this process left it."""
        try:
            is_whole = self.is_there() and os.fstat(self.descriptor).st_size == self.size
        except OSError:
            return  # it cannot be told
        if not is_whole:
            raise self.changed()

    def changed(self) -> Changed:
        """What happened to the file, once what it lacks of the lines is kept beside it."""
        path, what = self.path, self._what_happened()
        try:
            kept, lines = self._rescue()
        except OSError as error:
            return Changed(
                f"{path}: {what} while it was written, and what it lacks cannot be kept "
                f"({error.strerror}): put the file back as it was, if you can, and run the same "
                "command again"
            )
        if not lines:
            return Changed(
                f"{path}: {what} while it was written; no line is lost: run the same command again"
                " to continue"
            )
        number = "the line that it lacks is" if lines == 1 else f"the {lines:,} lines it lacks are"
        return Changed(
            f"{path}: {what} while it was written; {number} in {kept}: to continue, `cat {kept} >> "
            f"{path}`, remove {kept.name}, and run the same command again"
        )

    def close(self) -> None:
        """Close the file and let others write."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        let_go(descriptor, self._lock)
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def discard(self) -> None:
        """Let others write, and leave no file where opening made one that nothing was put into."""
        if self._descriptor is None:
            return
        with contextlib.suppress(OSError):
            if self.is_new and not os.fstat(self._descriptor).st_size and self.is_there():
                self.path.unlink()
        self.close()

    def _keep(self, line: bytes) -> None:
        try:
            if self._kept is None:
                folder = str(self.path.parent)
                self._kept = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=folder)  # noqa: SIM115
            self._kept.write(line)
        except OSError:  # no room for a copy, which is no reason to end
            pass

    def _what_happened(self) -> str:
        try:
            there = os.stat(self.path)
            own = os.fstat(self.descriptor)
        except OSError as error:
            if error.errno == errno.ESTALE:
                return f"was taken away on its server ({error.strerror})"
            with contextlib.suppress(OSError):
                if os.fstat(self.descriptor).st_nlink:
                    return "was moved away"
            return "was deleted"
        if (there.st_dev, there.st_ino) != (own.st_dev, own.st_ino):
            return "was replaced by another file (as an editor or `sed -i` does)"
        if own.st_size < self.size:
            return f"was cut or saved anew ({own.st_size:,} bytes, where {self.size:,} were)"
        return f"was written to by somebody else ({own.st_size:,} bytes, where {self.size:,} were)"

    def _rescue(self) -> tuple[Path, int]:
        """Write the lines that are not at the path into a new file beside it; tells how many."""
        known, is_terminated = _digests(self.path)
        kept: Path | None = None
        lines = 0
        with contextlib.ExitStack() as stack:
            for line in self._lines():
                if not line.endswith(b"\n") or not line.strip() or _digest(line) in known:
                    continue
                known.add(_digest(line))
                if kept is None:
                    kept, descriptor = _new_beside(self.path)
                    file = stack.enter_context(open(descriptor, "wb"))
                    file.write(b"" if is_terminated else b"\n")
                file.write(line)
                lines += 1
        return kept or self.path, lines

    def _lines(self) -> Iterator[bytes]:
        """What the file under the descriptor has, which may have no name any more, and the copy."""
        with contextlib.suppress(OSError), open(os.dup(self.descriptor), "rb") as file:
            file.seek(0)
            yield from file
        if self._kept is not None:
            self._kept.seek(0)
            yield from self._kept


def _open(path: Path, follow: bool) -> tuple[int, bool]:
    """A descriptor of the file, and whether this made it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    flags |= 0 if follow else os.O_NOFOLLOW
    try:
        make_folders(path.parent)
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | os.O_EXCL, 0o666), True
        return os.open(path, flags, 0o666), False
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.ELOOP:
            reason = "it is a symbolic link, which nobody named"
        raise JournalError(
            f"{path}: cannot be written: {reason}: choose another --output"
        ) from error


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the path leads to the open file. Raises OSError where that cannot be told."""
    try:
        there = os.stat(path)
    except OSError as error:
        if error.errno in _GONE:
            return False
        raise
    own = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)


def _new_beside(path: Path) -> tuple[Path, int]:
    """Name a file beside `a.jsonl` `a.rescued.jsonl`, or the first such name that is free, and a
    descriptor.
    """
    stem = path.name.removesuffix(".jsonl")
    number = 1
    while True:
        kept = path.with_name(f"{stem}.rescued{'' if number == 1 else f'-{number}'}.jsonl")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return kept, os.open(kept, flags, 0o666)
        except FileExistsError:
            number += 1
        except FileNotFoundError:  # its folder was moved or removed, too
            make_folders(path.parent)


def _digests(path: Path) -> tuple[set[bytes], bool]:
    """Digests of a file's lines, and whether its last line is ended; the file may be gone."""
    found: set[bytes] = set()
    line = b"\n"
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), path.open("rb") as file:
        for line in file:
            found.add(_digest(line))
    return found, line.endswith(b"\n")


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line.strip(), digest_size=16).digest()
