"""Panics of libraries that are written in Rust, as errors of one line.

A tokenizer panics where its regular expression needs more steps than it may take. Rust writes a
page about that to standard error by itself, and Python gets an exception that is no `Exception`.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import IO

from sharegen.errors import ModelError

_SHOWN = 200  # characters of what it says


@contextmanager
def panics_as_errors(what: str) -> Iterator[None]:
    """Raises ModelError for a panic inside: `what` gives up, and why.

    Meanwhile standard error goes to a file, of which the rest is written afterwards.
    """
    kept = _kept()
    kept.begin()
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        kept.drop()
        reason = " ".join(str(error).split()) or "it panics"
        raise ModelError(f"{what} gives up: {reason:.{_SHOWN}}") from None
    finally:
        kept.end()


class _Kept:
    """Standard error, kept back while some threads want that.

    The first one to begin leads it to a file, and the last one to end leads it back.
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._lock = threading.Lock()
        self._users = 0
        self._before: int | None = None  # where it went; None where it is closed

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                try:
                    self._before = os.dup(2)
                except OSError:
                    self._before = None
                else:
                    os.dup2(self._file.fileno(), 2)

    def drop(self) -> None:
        with self._lock:
            self._file.seek(0)
            self._file.truncate()

    def end(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users or self._before is None:
                return
            os.dup2(self._before, 2)
            os.close(self._before)
            self._file.seek(0)
            if said := self._file.read():
                os.write(2, said)
                self._file.seek(0)
                self._file.truncate()


@cache
def _kept() -> _Kept:
    return _Kept()
