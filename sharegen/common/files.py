"""Files that are replaced whole, whatever lies under the names that this takes on the way.

Nothing but a file is replaced: a pipe or a device under that name is somebody's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def check_is_file(path: Path) -> None:
    """Raise OSError where there is something that is no file, or no file can be.

    What `path` leads to is asked, and not opened: a pipe would wait for its reader.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    kind = _KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        raise OSError(errno.EEXIST, f"it is {kind}")


def make_folders(folder: Path) -> None:
    """The folder and all above it, however deep it is. Raises OSError."""
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename over it: on disk, it is the old file or the whole new one.

    The file beside has a name of its own and is made anew, so that nobody who may write to the
    folder can have put a symbolic link there. Raises OSError; the old file is then untouched.
    """
    check_is_file(path)
    partial = path.with_name(f".{os.urandom(8).hex()}.partial")
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
