"""How long a job will take, estimated from a former run of its model on this machine.

Nothing else is asked: a number from a table of cards and models would be a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sharegen.errors import SharegenError
from sharegen.job.environment import device_name
from sharegen.job.sharing_plan import SharingPlan
from sharegen.results.journal.found_journal import FoundJournal, journals_with_run_files
from sharegen.results.journal.run_file import RunFile
from sharegen.workload.configuration import Configuration

RUNS = Path("runs")
"""Where journals lie that nobody gave another place."""

_LIKE = ("device", "workers", "tensor_parallel_size", "quantization")
"""What of the machine a run must have had in common, beside the device itself."""

_LEAST_SECONDS = 1.0  # a shorter run says little of the pace


@dataclass(frozen=True)
class TimeEstimate:
    """An estimate of time. seconds: of sampling. pace: tokens a second of the run that it is from,
    in `run_file`.

    tokens: of a sample, on average; None where that run had another recipe, and the time is that
    of samples at their full length.
    """

    seconds: float
    pace: float
    tokens: float | None
    run_file: Path


def estimate(
    configuration: Configuration, plan: SharingPlan, folder: Path = RUNS
) -> TimeEstimate | None:
    """The estimate from the latest similar run, preferably of the same recipe; None without one.

    Nor is there one for a GPU that is not here: no run on this machine says how fast that is.
    """
    from sharegen.engine.model.checkpoint.source import resolve_device

    if configuration.machine.ray is not None or plan.gpu_bytes:
        return None
    here = device_name(resolve_device(configuration.machine.device))
    found = [
        (run.settings.get("recipe") == configuration.recipe, journal, run)
        for journal, run in _runs(folder)
        if run.environment.get("device") == here and _is_like(run, configuration)
    ]
    if not found:
        return None
    is_same, journal, run = max(
        found, key=lambda each: (each[0], each[2].environment.get("date", ""))
    )
    pace = run.stats["generated_tokens"] / run.timings["sampling_seconds"]
    tokens = run.stats["generated_tokens"] / run.stats["completions"] if is_same else None
    each = plan.max_tokens if tokens is None else min(tokens, plan.max_tokens)
    return TimeEstimate(plan.samples * each / pace, pace, tokens, journal.run_file)


def _runs(folder: Path) -> Iterator[tuple[FoundJournal, RunFile]]:
    """The journals of a folder with their run files, those that can be read."""
    for journal in journals_with_run_files(folder):
        try:
            run = journal.run
        except SharegenError:
            continue
        if run is not None:
            yield journal, run


def _is_like(run: RunFile, configuration: Configuration) -> bool:
    """Whether it was of the same model, on as many engines, and long enough to tell."""
    settings, machine = run.settings, configuration.machine
    of_run = settings.get("machine") or {}
    return (
        all(settings.get(name) == getattr(configuration, name) for name in ("model", "adapter"))
        and all(of_run.get(name) == getattr(machine, name) for name in _LIKE)
        and run.timings.get("sampling_seconds", 0.0) >= _LEAST_SECONDS
        and run.stats.get("generated_tokens", 0) > 0
        and run.stats.get("completions", 0) > 0
    )
