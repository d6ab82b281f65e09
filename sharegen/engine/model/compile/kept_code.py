"""Compiled code is kept from one process to the next, by what it was compiled with.

torch and Triton keep what they compile by the code, the shapes and their own settings, in folders
for temporary files by default, which a container or a restart loses. Here they get one in the
cache (`common/cache_folder.py`) for each version of torch, of Triton and of Python and each card:
another version's is never read. Both write files in one step, so two starts may share the folder;
what does not load they compile again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import sys
import tempfile
import threading
from importlib import metadata
from pathlib import Path

from sharegen.common.cache_folder import trim, usable_folder

_LIMIT = 4 << 30  # bytes, of all versions and cards together
_LEVELS = 3  # a version, who compiled it, one piece of code
_SETTINGS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def begin_to_hash_triton() -> None:
    """Let a thread compute what Triton names all its code by, while weights are read.

    It is a hash of Triton's own files, which takes half a second, and is kept in the process.
    """
    threading.Thread(target=_hash_triton, daemon=True).start()


def _hash_triton() -> None:
    with contextlib.suppress(ImportError, OSError):  # another version, which does it elsewhere
        from triton.runtime.cache import triton_key

        triton_key()


def keep_compiled_code(card: str) -> Path | None:
    """Have what this process compiles for a card kept, and found; returns the folder.

    None where nothing can be kept, and then all is as torch has it. A setting of the user's own
    stays.
    """
    folder = usable_folder("compiled")
    if folder is None or not _takes_code(folder):
        return None
    own = folder / _version(card)
    try:
        own.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    trim(folder, _LIMIT, _LEVELS)
    for setting, name in _SETTINGS.items():
        if os.environ.get(setting, _torch_s_own()) == _torch_s_own():
            os.environ[setting] = str(own / name)
    return own


def _takes_code(folder: Path) -> bool:
    """Whether compiled code can be loaded from there, and torch's locks held.

    Homes are mounted without the right to run what is in them, or over a network without locks.
    """
    try:
        if os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
            return False
        with tempfile.TemporaryFile(dir=folder) as trial:
            fcntl.flock(trial, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _torch_s_own() -> str | None:
    """The folder that torch sets by itself, as soon as its compiler is imported."""
    if "torch._inductor" not in sys.modules:
        return None
    try:
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        return str(default_cache_dir())
    except (ImportError, KeyError, OSError):  # another version, or a user without a name
        return None  # what is set is taken for the user's


def _version(card: str) -> str:
    """A folder's name for all that compiled code depends on and its own keys may not have."""
    parts = [card, f"{sys.version_info.major}.{sys.version_info.minor}"]
    for package in ("torch", "triton"):
        try:
            parts.append(f"{package}-{metadata.version(package)}")
        except metadata.PackageNotFoundError:
            parts.append(f"{package}-none")
    name = "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part) for part in parts)
    return f"{name[:100]}_{hashlib.blake2b(repr(parts).encode(), digest_size=4).hexdigest()}"
