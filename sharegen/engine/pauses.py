"""Python's garbage collector, kept from stopping a job."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def short_collections() -> Iterator[None]:
    """What exists now is left out of the collections inside; they look at what is made since.

    A full collection over all of torch and transformers takes as long as ten steps of a GPU, and
    torch asks for one with every graph that it captures. What the caller had frozen before is
    thawed with the rest.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
