"""Python's bytecode is kept where Python itself keeps none.

It lies beside a module's source. With PYTHONDONTWRITEBYTECODE, or in a folder that cannot be
written, Python leaves it out, and an installer may have made none: containers often have all of
it. Then every start compiles torch and transformers anew, half of what imports take. Here it goes
to the cache (`common/cache_folder.py`), in a folder for each Python and environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_LIMIT = 1 << 29  # bytes, of all environments together; one has some 40 MB
_SUM = 4  # bytes that a file here has after Python's own: Python would stumble over a damaged one


@contextmanager
def kept_bytecode() -> Iterator[None]:
    """Inside, modules' bytecode is kept in the cache, if Python keeps none of torch's by itself.

    A setting of the user's own (PYTHONPYCACHEPREFIX) stays, and so does all that Python does where
    the cache cannot be used.
    """
    folder = _folder() if _is_needed() else None
    if folder is None:
        yield
        return
    before = sys.pycache_prefix, sys.dont_write_bytecode
    sys.pycache_prefix, sys.dont_write_bytecode = str(folder), False
    try:
        with _summed(f"{folder}{os.sep}"):
            yield
    finally:
        sys.pycache_prefix, sys.dont_write_bytecode = before


def _is_needed() -> bool:
    if sys.pycache_prefix is not None or "torch" in sys.modules:
        return False
    spec = find_spec("torch")  # which does not import it
    if spec is None or spec.origin is None or spec.cached is None or os.path.exists(spec.cached):
        return False
    return sys.dont_write_bytecode or not os.access(os.path.dirname(spec.origin), os.W_OK)


def _folder() -> Path | None:
    # Nobody waits for these imports where Python keeps bytecode.
    import hashlib

    from sharegen.common.cache_folder import trim, usable_folder

    home = usable_folder("bytecode")
    if home is None:
        return None
    place = hashlib.blake2b(os.fsencode(sys.prefix), digest_size=8).hexdigest()
    own = home / f"{sys.implementation.cache_tag}-{place}"
    if not own.exists():
        trim(home, _LIMIT, depth=1)
    return own


@contextmanager
def _summed(folder: str) -> Iterator[None]:
    """Inside, files in the folder end with a sum of their bytes, and count as absent without."""
    from zlib import crc32

    get_data, set_data = SourceFileLoader.get_data, SourceFileLoader.set_data

    def get(self: SourceFileLoader, path: str) -> bytes:
        found = get_data(self, path)
        if not path.startswith(folder):
            return found
        data, end = found[:-_SUM], found[-_SUM:]
        if crc32(data).to_bytes(_SUM, "little") != end:
            raise OSError(f"{path} is damaged")  # as if it could not be read
        return data

    def put(self: SourceFileLoader, path: str, data: Any, **settings: Any) -> None:
        if path.startswith(folder):
            data = bytes(data) + crc32(data).to_bytes(_SUM, "little")
        set_data(self, path, data, **settings)

    SourceFileLoader.get_data, SourceFileLoader.set_data = get, put  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        SourceFileLoader.get_data, SourceFileLoader.set_data = get_data, set_data  # type: ignore[method-assign]
