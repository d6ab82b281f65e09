"""What a user should hear of while the work goes on: a row left out, a line that is no record.

These go to the logger "sharegen", so that a library's user can silence or collect them; the command
line hears them with `heard`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

_LOGGER = logging.getLogger("sharegen")
_MOST = 50
"""Lines that anyone reads; of the others it is said how many they are."""


def remark(line: str) -> None:
    """Tell one thing, in one line."""
    _LOGGER.warning("%s", line)


@contextlib.contextmanager
def heard(say: Callable[[str], None]) -> Iterator[None]:
    """Hand what is remarked in the block to `say`, each line once however often it comes up."""
    listener = _Listener(say)
    propagates, _LOGGER.propagate = _LOGGER.propagate, False
    _LOGGER.addHandler(listener)
    try:
        yield
    finally:
        _LOGGER.removeHandler(listener)
        _LOGGER.propagate = propagates
        if len(listener.lines) > _MOST:
            say(f"and {len(listener.lines) - _MOST:,} more such lines")


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
