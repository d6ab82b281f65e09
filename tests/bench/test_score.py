"""The speed of scoring: every sandbox that works is measured, and every kind of tests."""

from __future__ import annotations

import json

import pytest

from sharegen.bench import score as bench
from sharegen.bench.score import bench_score
from sharegen.results.sandbox.host import KINDS, SandboxError, fault_of
from tests.results.sandboxes import isolation


@pytest.mark.slow
def test_every_isolation_that_works_is_measured() -> None:
    isolation()
    *lines, last = bench_score(programs=4, workers=1)
    result = json.loads(last)
    assert (result["programs"], result["workers"], result["cores"]) == (4, 1, 1)
    found = result["programs_per_second_per_core"]
    assert list(found) == [kind for kind in KINDS if fault_of(kind) is None]
    for kind, paces in found.items():
        assert list(paces) == ["script", "call", "check"] and min(paces.values()) > 0
        assert sum(line.startswith(kind) for line in lines) == 3


def test_without_isolation_the_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "fault_of", lambda kind: f"{kind}: not here")
    with pytest.raises(SandboxError, match="namespaces: not here"):
        bench_score(programs=1, workers=1)
