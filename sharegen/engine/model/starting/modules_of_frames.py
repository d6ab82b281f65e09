"""Imports without a search for the module that a line of code is in.

For each of 130 operators that are registered while it is imported, torch asks `inspect` which
module does so, and where. Python compares the file with those of all modules that are imported, by
their real paths, though a frame knows its module's name: a tenth of a second.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType


@contextmanager
def modules_of_frames() -> Iterator[None]:
    """Inside, `inspect.getmodule` answers for a frame by the name that its globals have."""
    search = inspect.getmodule

    def getmodule(object: object, _filename: str | None = None) -> ModuleType | None:
        name = object.f_globals.get("__name__") if isinstance(object, FrameType) else None
        return sys.modules.get(name or "") or search(object, _filename)

    inspect.getmodule = getmodule
    try:
        yield
    finally:
        inspect.getmodule = search
