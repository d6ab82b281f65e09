"""The folder in which one run keeps what later ones use again, and its bound.

It is `sharegen` under `XDG_CACHE_HOME`, or under `~/.cache`. Nothing in it is needed: whoever
removes it, or a part of it, loses time alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

_AT_WORK_SECONDS = 24 * 3600
_LEAST_FREE = 1 << 30  # bytes of its disk: what is kept is not worth the last of it


def cache_folder() -> Path | None:
    """The folder, whether it is there or not; None where nobody has a home."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(asked):  # what is relative counts as not set, by the specification
        return Path(asked) / "sharegen"
    try:
        return Path.home() / ".cache" / "sharegen"
    except RuntimeError:
        return None


def usable_folder(name: str) -> Path | None:
    """A folder of the cache, made where it is not there; None where nothing can be kept in it.

    That is so where it cannot be written to, or its disk is nearly full. Nothing is raised: a
    cache that cannot be used is none.
    """
    home = cache_folder()
    if home is None:
        return None
    folder = home / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as trial:
            trial.write(b"\0" * 4096)
        free = shutil.disk_usage(folder).free
    except OSError:
        return None
    return folder if free >= _LEAST_FREE else None


def trim(folder: Path, limit: int, depth: int, now: float | None = None) -> None:
    """Remove what was written longest ago, until the folder holds `limit` bytes at most.

    depth: what is so many levels below the folder goes as a whole or stays. What was written within
    a day stays, however deep, for somebody may be at work with it. Others may remove or write at
    the same time.
    """
    now = time.time() if now is None else now
    entries = []
    # Python before 3.13 has the search end where somebody else removes what it goes through.
    with contextlib.suppress(OSError):
        for entry in folder.glob("/".join("*" * depth)):
            with contextlib.suppress(OSError):
                entries.append((*_written_and_size(entry), entry))
    total = sum(size for _, size, _ in entries)
    for written, size, entry in sorted(entries):
        if total <= limit or written > now - _AT_WORK_SECONDS:
            return
        _remove(entry)
        total -= size


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        entry.unlink()


def _written_and_size(entry: Path) -> tuple[float, int]:
    """When something of it was written last, and the bytes of its files."""
    own = entry.lstat()
    written, total = own.st_mtime, 0 if entry.is_dir() else own.st_size
    for place, folders, names in os.walk(entry):
        for name in (*folders, *names):
            try:
                found = os.lstat(os.path.join(place, name))
            except OSError:  # somebody else has removed it
                continue
            written = max(written, found.st_mtime)
            total += 0 if name in folders else found.st_size
    return written, total
