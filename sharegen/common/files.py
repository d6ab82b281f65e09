"""Files that are replaced whole, whatever lies under the names that this takes on the way."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename over it: on disk, it is the old file or the whole new one.

    The file beside has a name of its own and is made anew, so that nobody who may write to the
    folder can have put a symbolic link there. Raises OSError; the old file is then untouched.
    """
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(partial, flags, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a file's new name durable, as fsync of the file alone does not. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
