"""Ctrl-C and SIGTERM: the first stops the work cleanly, the second at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sharegen.common.ctrl_c import EXIT_CODE, leave_if_importing
from sharegen.errors import JournalError, SharegenError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ECHO = 0.2
"""Seconds for which a signal is still the one before: `timeout` sends each of its own twice, to the
process and to its group."""
_SOON = 0.02  # seconds


class Interrupted(SharegenError):
    """The user stopped the job; what was finished is on record."""

    exit_code = EXIT_CODE


class Interrupts:
    """The signals of one job: a KeyboardInterrupt, but never in the middle of a write."""

    def __init__(self) -> None:
        self._held = False
        self._asked: float | None = None  # when, by the clock of time.monotonic
        self._again: threading.Timer | None = None

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
            leave_if_importing(frame)
            raise KeyboardInterrupt

    @contextmanager
    def translated(self) -> Iterator[None]:
        """What fails inside after an interrupt fails for that: a library made an error of it."""
        try:
            yield
        except (Interrupted, JournalError):
            raise
        except Exception:
            if self._asked is not None:
                raise KeyboardInterrupt from None
            raise

    @contextmanager
    def none_lost(self) -> Iterator[None]:
        """An interrupt that came in a destructor, where Python drops it, comes again inside."""
        before = sys.unraisablehook

        def hook(dropped: sys.UnraisableHookArgs) -> None:
            if dropped.exc_type is not KeyboardInterrupt:
                before(dropped)
                return
            self._asked = None
            self._again = threading.Timer(_SOON, os.kill, (os.getpid(), signal.SIGINT))
            self._again.daemon = True
            self._again.start()

        sys.unraisablehook = hook
        try:
            yield
        finally:
            sys.unraisablehook = before
            if self._again is not None:
                self._again.cancel()


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Handle the signals while work runs; outside the main thread they are left alone."""
    handler = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield handler
        return
    before = {number: signal.signal(number, handler._on_signal) for number in _SIGNALS}
    try:
        with handler.none_lost(), handler.translated():
            yield handler
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
