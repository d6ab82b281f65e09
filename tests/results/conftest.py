"""A sandbox of each kind; where namespaces work, its tests fail rather than skip."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from sharegen.results.sandbox.host import Sandbox
from sharegen.results.sandbox.system import Isolation
from tests.results.sandboxes import LIMITS, namespaces_work


@pytest.fixture(scope="module", params=["namespaces", "bubblewrap"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    isolation: Isolation = request.param
    if not namespaces_work():
        pytest.skip("no namespaces on this system")
    if isolation == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with Sandbox(isolation, LIMITS) as sandbox:
        yield sandbox
