"""What structured outputs cost is measured with none, one and all rows bound."""

from __future__ import annotations

import pytest

from benchmarks.structured import bench_structured

pytestmark = pytest.mark.slow


def test_the_last_line_tells_all_parts() -> None:
    said = bench_structured(4, 1000, 5)
    assert list(said["bound"]) == ["none", "one", "all"]
    for parts in said["bound"].values():
        assert list(parts) == ["schedule_ms", "masks_ms", "collect_ms", "sampler_ms"]
        assert all(ms >= 0 for ms in parts.values())
