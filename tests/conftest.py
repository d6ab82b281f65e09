"""What must be set before torch and Triton are imported, here and in processes that tests start."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator

# What one process has compiled is there for all the others, whatever the environment says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Tiny models gain nothing from a second thread, and tests that run side by side (-n) lose by it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from sharegen.common import confined

if not torch.cuda.is_available():
    # The kernels run in Triton's interpreter, which is chosen at their import.
    os.environ["TRITON_INTERPRET"] = "1"

# A full collection looks at the half a million objects of torch and of the tests themselves. At the
# usual pace that takes four seconds while the tests are only being collected.
gc.set_threshold(*gc.get_threshold()[:2], 100)

# What a shell starts in the background ignores Ctrl-C, and so would all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of tests marked `every(n)` the first case runs at every turn, and each n-th after it.

    The others are slow; those of a test that is slow itself are long. `every(n, m)`: of the others
    each m-th alone is slow, and the rest are long.
    """
    cases, rest = Counter[str](), Counter[str]()
    for item in items:
        mark = item.get_closest_marker("every")
        if mark is None:
            continue
        name = item.nodeid.partition("[")[0]
        n, m = (*mark.args, 1)[:2]
        if cases[name] % n:
            is_long = item.get_closest_marker("slow") is not None or rest[name] % m
            item.add_marker(pytest.mark.long if is_long else pytest.mark.slow)
            rest[name] += 1
        cases[name] += 1


@pytest.fixture
def uncovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage measures no process that the test starts.

    For processes that hear a signal: an exception that it raises while coverage holds its lock
    leaves that locked, and all threads wait for it for ever.
    """
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Less time and memory for what strangers' templates and patterns compute."""
    monkeypatch.setattr(confined, "SECONDS", 0.3)
    monkeypatch.setattr(confined, "MEMORY", 2**28)
    confined.stop()
    yield
    confined.stop()
