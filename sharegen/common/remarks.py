"""What a user should hear of while the work goes on: a row left out, a line that is no record.

These go to the logger "sharegen", so that a library's user can silence or collect them; the engine
warns, as libraries do. The command line hears both with `heard`.
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
"""Lines that anyone reads; of the others it is said how many they are."""


def remark(line: str) -> None:
    """Tell one thing, in one line."""
    _LOGGER.warning("%s", line)


@contextlib.contextmanager
def heard(say: Callable[[str], None]) -> Iterator[None]:
    """Hand what is remarked, or warned of by sharegen, in the block to `say`, each line once."""
    listener = _Listener(say)
    propagates, _LOGGER.propagate = _LOGGER.propagate, False
    _LOGGER.addHandler(listener)
    try:
        with _warnings_as_remarks():
            yield
    finally:
        _LOGGER.removeHandler(listener)
        _LOGGER.propagate = propagates
        if len(listener.lines) > _MOST:
            say(f"and {len(listener.lines) - _MOST:,} more such lines")


@contextlib.contextmanager
def _warnings_as_remarks() -> Iterator[None]:
    with warnings.catch_warnings():
        show = warnings.showwarning

        def hear(
            message: Warning | str, category: Any, filename: str, *where: Any, **more: Any
        ) -> None:
            if Path(filename).is_relative_to(_PACKAGE):
                remark(str(message))
            else:
                show(message, category, filename, *where, **more)

        warnings.showwarning = hear
        warnings.filterwarnings("always", category=UserWarning, module=r"sharegen\.")
        yield


class _Listener(logging.Handler):
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
