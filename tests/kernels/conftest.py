from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    """Coverage measures no kernel, and would make the interpreter take more than twice as long."""
    trace = sys.gettrace()
    sys.settrace(None)
    yield
    sys.settrace(trace)
