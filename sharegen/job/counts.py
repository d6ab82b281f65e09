"""What all runs of a journal counted together, as its run.json keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LATEST = ("slots", "blocks_total", "blocks_used", "running", "waiting")
_PEAKS = ("peak_blocks",)


def added(before: Mapping[str, Any], now: Mapping[str, Any], again: int) -> dict[str, Any]:
    """The statistics of the earlier runs and of this one.

    again: prompt tokens that an earlier run computed too. In the whole job they are computed once,
    if that run lived to count them.
    """
    computed = "prompt_tokens_computed"
    again = min(again, now[computed], before.get(computed, 0))
    return _sum(before, {**now, computed: now[computed] - again, "prompt_tokens_resumed": again})


def _sum(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers added; what is no number is the last run's."""
    total = dict(now)
    for name, value in now.items():
        if isinstance(value, dict):
            total[name] = {**before.get(name, {}), **_sum(before.get(name, {}), value)}
        is_count = isinstance(value, (int, float)) and name not in _LATEST
        if is_count and name in before:
            total[name] = max(before[name], value) if name in _PEAKS else before[name] + value
    return total
