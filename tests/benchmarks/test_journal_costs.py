"""What the host does for a sample: every part is timed."""

from __future__ import annotations

from benchmarks.journal_costs import bench_journal


def test_every_part_has_its_time() -> None:
    found = bench_journal(problems=3, samples=8, words=30)
    assert found.pop("samples") == 24 and found.pop("bytes_a_sample") > 200
    assert found.keys() == {"record_us", "append_us", "read_us", "summary_us"}
    assert all(value > 0 for value in found.values())
