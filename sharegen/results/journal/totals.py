"""How the runs of one job went together, as if it had been one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sharegen.results.journal.run_file import RunFile

_LATEST = ("slots", "engines", "blocks_total", "blocks_used", "states_total", "running", "waiting")
_PEAKS = ("peak_blocks", "peak_states")
_MOMENT = "peak_kv"  # numbers of one step, of which there are no sums


def add(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics of all runs of a journal together; what is no number is the last run's."""
    total = dict(now)
    for name, value in now.items():
        earlier = before.get(name)
        if name == _MOMENT:
            both = [of_run for of_run in (earlier, value) if of_run]
            total[name] = max(both, key=lambda of_run: of_run["reserved"], default=value)
        elif isinstance(value, dict):
            section = earlier if isinstance(earlier, dict) else {}
            total[name] = section | add(section, value)
        elif _is_number(value) and _is_number(earlier) and name not in _LATEST:
            total[name] = max(earlier, value) if name in _PEAKS else earlier + value
    return total


def together(runs: Sequence[RunFile]) -> RunFile:
    """The run file of several journals of one job: their counts and seconds added.

    What only one journal has, its plan, its start and its progress over time, is left out.
    """
    first, *others = runs
    if not others:
        return first
    stats: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    timings: dict[str, Any] = {}
    for run in runs:
        stats = add(stats, {name: value for name, value in run.stats.items() if name != "plan"})
        counts = add(counts, run.counts)
        timings = add(timings, run.timings)
    extent = {name: value for name, value in first.extent.items() if name != "shard"}
    timings.pop("progress", None)
    timings.pop("start", None)
    return replace(first, extent=extent, stats=stats, counts=counts, timings=timings)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
