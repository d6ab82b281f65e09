"""Standard output and error, where writing can fail: a full disk, a closed end, a reader that left.

Every command writes through these two, by print, csv or rich. What fails on standard output ends
the command in one line, or in silence where a reader such as `head` had enough; log lines that
standard error does not take are lost, and the work goes on.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from sharegen.common.printable import has_signs, in_ascii
from sharegen.errors import SharegenError


class ReaderLeft(Exception):
    """Nobody reads standard output any more.

    Not the BrokenPipeError itself: rich and click make a failure of that.
    """


class _Stderr:
    """A text stream that goes nowhere once it fails."""

    def __init__(self, stream: TextIO | None):
        # The number of a closed one must not go to the next file that is opened, a journal maybe.
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115
        if isinstance(self._stream, io.TextIOWrapper):  # for half a character, or without UTF-8
            self._stream.reconfigure(errors="backslashreplace")
        self._has_signs = has_signs(self._stream.encoding)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text if self._has_signs else in_ascii(text))
            return len(text)
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """What the stream still holds is written at exit, and must not fail again."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


class _Stdout(_Stderr):
    """A text stream that raises ReaderLeft, or SharegenError for whatever else keeps it."""

    def __init__(self, stream: TextIO | None):
        super().__init__(stream)
        self.is_closed = stream is None
        self._failure: Exception | None = None

    def flush(self) -> None:
        super().flush()
        if self._failure is not None:  # click tries a stream out, and keeps what that raises
            raise self._failure

    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        self._failure = SharegenError(
            f"standard output: cannot be written: {error.strerror}: make room or send it elsewhere"
        )
        if isinstance(error, BrokenPipeError):
            self._failure = ReaderLeft()
        raise self._failure from error


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Replace sys.stdout and sys.stderr in the block by the streams described above."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Stdout(before[0]), _Stderr(before[1])  # type: ignore[assignment]
    try:
        yield
    finally:
        with contextlib.suppress(
            ReaderLeft, SharegenError
        ):  # after another failure, one is reported
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


@contextlib.contextmanager
def written() -> Iterator[None]:
    """What the block writes to standard output is written when it ends. Raises as that does."""
    if getattr(sys.stdout, "is_closed", False):
        raise SharegenError("standard output is closed: send it to a file or to /dev/null")
    yield
    sys.stdout.flush()
