"""Imports without a look for garbage: nearly all that they make stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Let Python look for no garbage inside; torch and transformers make a million objects.

    Afterwards they count as old, as if each had been looked at three times.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # what somebody has frozen would thaw
                gc.freeze()
                gc.unfreeze()  # to where the old ones are
            gc.enable()
