"""How many HTTP processes a server has that is not told."""

from __future__ import annotations

import pytest

from sharegen.serve import http_processes
from sharegen.serve.http_processes import beside


@pytest.mark.parametrize(("cores", "number"), [(1, 0), (7, 0), (8, 2), (16, 4), (128, 4)])
def test_a_quarter_of_the_cores_beside_a_gpu(
    cores: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_processes, "available_cores", lambda: cores)
    monkeypatch.setattr(http_processes.sys, "platform", "linux")
    assert beside(on_cpu=False) == number
    assert beside(on_cpu=True) == 0
