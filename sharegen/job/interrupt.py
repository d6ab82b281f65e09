"""Ctrl-C and SIGTERM: the first stops the work cleanly, the second at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sharegen.errors import SharegenError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ECHO = 0.2
"""Seconds for which a signal is still the one before: `timeout` sends each of its own twice, to the
process and to its group."""


class Interrupted(SharegenError):
    """The user stopped the job; what was finished is on record."""

    exit_code = 130


class Interrupts:
    """The signals of one job: a KeyboardInterrupt, but never in the middle of a write."""

    def __init__(self) -> None:
        self._held = False
        self._asked: float | None = None  # when, by the clock of time.monotonic

    @contextmanager
    def held(self) -> Iterator[None]:
        """Put off an interrupt that comes inside until the block ends."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._asked is not None:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked is not None:
            if now - self._asked < _ECHO:
                return
            os._exit(Interrupted.exit_code)
        self._asked = now
        if not self._held:
            raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle the signals while work runs; outside the main thread they are left alone."""
    handler = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    before = {number: signal.signal(number, handler._on_signal) for number in _SIGNALS}
    try:
        yield handler
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
