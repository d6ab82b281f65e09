"""A sandbox of each kind; where namespaces work, its tests fail rather than skip."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from sharegen.results.sandbox.host import Sandbox
from sharegen.results.sandbox.system import Isolation
from tests.results.sandboxes import LIMITS, namespaces_work

_FOUND = "bubblewrap" if shutil.which("bwrap") else "namespaces"  # which `score` takes here
_KINDS = [
    pytest.param(kind, marks=() if kind == _FOUND else pytest.mark.slow)
    for kind in ("namespaces", "bubblewrap")
]


@pytest.fixture(scope="module", params=_KINDS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    isolation: Isolation = request.param
    if not namespaces_work():
        pytest.skip("no namespaces on this system")
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with Sandbox(isolation, LIMITS) as sandbox:
        yield sandbox
