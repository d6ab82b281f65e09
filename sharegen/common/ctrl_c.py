"""Ctrl-C while modules are imported, which no KeyboardInterrupt survives.

Some libraries catch all that happens as they are imported, and go on without what they lack, or
fail with another error. So an interrupt that comes during an import ends the process there.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_CODE = 130

_IMPORT = "<frozen importlib._bootstrap>"
_SHOW_CURSOR = b"\x1b[?25h"  # which a progress bar hides
_SAID = b"sharegen: interrupted\n"


def quiet_imports() -> None:
    """Let Ctrl-C be a KeyboardInterrupt, except during an import, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_signal)


def quiet_end() -> None:
    """Let Ctrl-C end the process without a message from now on, while Python exits."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_CODE))


def leave_if_importing(frame: FrameType | None) -> None:
    """End the process where a signal came during an import. frame: what it interrupted."""
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT:
            leave()
        frame = frame.f_back


def leave() -> None:
    """End this process now, with a line."""
    try:
        os.write(2, _SHOW_CURSOR + _SAID if os.isatty(2) else _SAID)
    finally:
        os._exit(EXIT_CODE)


def _on_signal(number: int, frame: FrameType | None) -> None:
    leave_if_importing(frame)
    raise KeyboardInterrupt
