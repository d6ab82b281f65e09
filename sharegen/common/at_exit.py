"""Generators that hold an engine: those that nobody has finished are closed as Python ends.

Else Python closes them when it has taken modules apart already, and what they clean up with is not
there any more: a page of `Exception ignored`.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable, Generator
from functools import wraps
from typing import ParamSpec, TypeVar
from weakref import WeakSet

from sharegen.errors import SharegenError

P = ParamSpec("P")
T = TypeVar("T")

_open: WeakSet[Generator[object, None, None]] = WeakSet()


def closed_at_exit(
    function: Callable[P, Generator[T, None, None]],
) -> Callable[P, Generator[T, None, None]]:
    """The generator function, whose generators do not outlast the program."""

    @wraps(function)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        generator = function(*args, **kwargs)
        _open.add(generator)
        atexit.unregister(_close)  # the last that is registered is the first to run: before what
        atexit.register(_close)  # ends the processes that a job may need to end
        return generator

    return begin


def _close() -> None:
    for generator in list(_open):
        with contextlib.suppress(SharegenError, ValueError):  # another thread may be in it
            generator.close()
