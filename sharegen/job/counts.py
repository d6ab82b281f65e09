"""What all runs of a journal counted together, as its run.json keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sharegen.job.drawn_again import DrawnAgain
from sharegen.job.sharing_plan import SharingPlan
from sharegen.results.journal.journal import Journal
from sharegen.results.journal.totals import add

if TYPE_CHECKING:
    from sharegen.engine.verifying import Verified


def added(before: Mapping[str, Any], now: Mapping[str, Any], again: int) -> dict[str, Any]:
    """The statistics of the earlier runs and of this one.

    again: prompt tokens that an earlier run computed too. In the whole job they are computed once,
    if that run lived to count them.
    """
    computed = "prompt_tokens_computed"
    again = min(again, now[computed], before.get(computed, 0))
    return add(before, {**now, computed: now[computed] - again, "prompt_tokens_resumed": again})


def close_run(
    journal: Journal,
    plan: SharingPlan,
    counted: dict[str, Any],
    again: int,
    checked: Mapping[str, Verified | DrawnAgain | None],
    timings: dict[str, Any],
) -> None:
    """Close the journal with what this run counted and those before it did.

    Args:
        counted: the statistics of this run.
        again: prompt tokens that an earlier run of the journal computed too.
        checked: what was looked at again when all was drawn.
        timings: of this run, in seconds; `cpu_seconds` are of this process.
    """
    before = journal.run.timings
    stats = added(journal.run.stats, counted, again) | {"plan": plan.to_json()}
    for name, found in checked.items():
        if found is not None:
            stats[name] = asdict(found)
        elif name in journal.run.stats:  # of an earlier run, whose samples are here too
            stats[name] = journal.run.stats[name]
    for name in ("sampling_seconds", "cpu_seconds"):
        timings[name] = round(before.get(name, 0.0) + timings[name], 3)
    journal.close(
        stats,
        counts={"problems": plan.problems, "samples_asked": plan.samples},
        timings=timings,
    )
