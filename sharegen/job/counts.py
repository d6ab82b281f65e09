"""What all runs of a journal counted together, as its run.json keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sharegen.results.journal.totals import add


def added(before: Mapping[str, Any], now: Mapping[str, Any], again: int) -> dict[str, Any]:
    """The statistics of the earlier runs and of this one.

    again: prompt tokens that an earlier run computed too. In the whole job they are computed once,
    if that run lived to count them.
    """
    computed = "prompt_tokens_computed"
    again = min(again, now[computed], before.get(computed, 0))
    return add(before, {**now, computed: now[computed] - again, "prompt_tokens_resumed": again})
