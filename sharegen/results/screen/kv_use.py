"""What a run says of its KV cache: how much was in use at most, and how much of it was wasted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mib(number: int) -> str:
    """A number of bytes."""
    return f"{number / 2**20:,.1f} MiB"


def wasted_share(kv: Mapping[str, int]) -> float:
    """The share of the places in blocks in use that holds no token; 0 if none was in use."""
    reserved = kv.get("reserved", 0)
    return 1 - kv["used"] / reserved if reserved else 0.0


def kv_rows(stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Rows of the summary; the peaks of several workers, each at its own step, are added up."""
    rows = []
    peak = stats.get("peak_kv")
    if peak and peak["reserved"]:
        wasted = wasted_share(stats.get("kv_in_steps", {}))
        held = f"{mib(peak['reserved'])} reserved, {mib(peak['used'])} used"
        rows.append(("KV cache at most", f"{held}; {wasted:.1%} empty on average"))
    if stats.get("peak_states"):
        slots = f"{stats['peak_states']:,} of {stats['states_total']:,} slots"
        rows.append(("states at most", slots + _in_bytes(stats)))
    return rows


def _in_bytes(stats: Mapping[str, Any]) -> str:
    state = (stats.get("plan") or {}).get("state_bytes")
    return f", {mib(stats['peak_states'] * state)}" if state else ""
