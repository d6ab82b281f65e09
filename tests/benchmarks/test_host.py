"""What the host does in a step: prompts with many samples are timed as those with one are."""

from __future__ import annotations

import pytest

from benchmarks import host


@pytest.mark.parametrize(("samples", "ends"), [(1, 1), (16, 3)])
def test_every_part_has_its_time(samples: int, ends: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "STEPS", 4)
    found = host.bench_host(8, samples, ends, ["Question:"] * (samples > 1))
    assert found.keys() == {"schedule_ms", "collect_ms", "step_ms"}
    assert all(value > 0 for value in found.values())
