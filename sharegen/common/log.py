"""Log lines for the user while the work goes on: a row left out, a line that is not a record.

They go to the logger "sharegen", so that a library's user can silence or collect them; the engine
warns, as libraries do. The command line prints both (`handled_by`).
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger("sharegen")
_PACKAGE = Path(__file__).resolve().parents[1]
_MOST = 50
"""Lines that are printed; the others are counted."""


def log(line: str) -> None:
    """Log one line as a warning."""
    _LOGGER.warning("%s", line)


@contextlib.contextmanager
def handled_by(say: Callable[[str], None]) -> Iterator[None]:
    """Hand each line that is logged in the block, or warned of by sharegen, to `say`, once."""
    handler = _Handler(say)
    propagates, _LOGGER.propagate = _LOGGER.propagate, False
    _LOGGER.addHandler(handler)
    try:
        with _warnings_logged():
            yield
    finally:
        _LOGGER.removeHandler(handler)
        _LOGGER.propagate = propagates
        if len(handler.lines) > _MOST:
            say(f"and {len(handler.lines) - _MOST:,} more such lines")


@contextlib.contextmanager
def _warnings_logged() -> Iterator[None]:
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_or_log(
            message: Warning | str, category: Any, filename: str, *where: Any, **more: Any
        ) -> None:
            if Path(filename).is_relative_to(_PACKAGE):
                log(str(message))
            else:
                show(message, category, filename, *where, **more)

        warnings.showwarning = show_or_log
        warnings.filterwarnings("always", category=UserWarning, module=r"sharegen\.")
        yield


class _Handler(logging.Handler):
    def __init__(self, say: Callable[[str], None]):
        super().__init__()
        self.lines: set[str] = set()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line not in self.lines:
            self.lines.add(line)
            if len(self.lines) <= _MOST:
                self._say(line)
