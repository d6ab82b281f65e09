"""What of the process is set for a job: torch's threads, Python's garbage collector, Ctrl-C.

A decoding step is hundreds of operations, and after each the threads wait for one another. For a
small model that takes longer than the work itself. So both one thread and all are tried, once, on a
batch of the real size.
"""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from sharegen.engine.model.loaded import LoadedModel

_LONG = 0.5  # seconds of a step, from which the work outweighs any waiting
_FEW = 32  # rows that tell whether a step is so long: one of many rows takes seconds then
_TRIALS = 2  # of which the faster counts: the first worker of a job waits for them
_WORTH = 0.7  # of one thread's time: attention, which is not tried, has the smaller operations


def best_threads(model: LoadedModel, rows: int) -> int:
    """Torch's threads as they are set, or 1 where they hardly speed up `rows` tokens."""
    threads = torch.get_num_threads()
    if threads == 1:
        return 1
    few = min(rows, _FEW)
    first = _seconds(model, few)  # it warms up for the others, too
    if few < rows and first * rows / few > _LONG:
        first = _seconds(model, few)
    if first * rows / few > _LONG:
        return threads
    together = min(_seconds(model, rows) for _ in range(_TRIALS))
    with using(1):
        alone = min(_seconds(model, rows) for _ in range(_TRIALS))
    return threads if together < _WORTH * alone else 1


@contextmanager
def using(threads: int) -> Iterator[None]:
    """Use so many threads inside, and as many as before after that."""
    before = torch.get_num_threads()
    if threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(model: LoadedModel, rows: int) -> float:
    """The time of a forward."""
    start = time.perf_counter()
    model.trial_forward(rows, min(rows, 8))
    return time.perf_counter() - start


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


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A Ctrl-C inside comes at the end; a second one at once."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # none of Python's, or none that comes here
        return
    came = False

    def put_off(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, put_off)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
