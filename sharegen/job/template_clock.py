"""The time that the chat templates of a job see: as set, as the first run had it, or now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from sharegen.common.log import log
from sharegen.errors import JournalError, UsageError
from sharegen.results.journal.family import family, whole_path
from sharegen.results.journal.run_file import RunFile, run_file_path
from sharegen.workload.clock import Clock
from sharegen.workload.configuration import Configuration


def clock_of(configuration: Configuration, path: Path | None = None) -> Clock:
    """The clock of a job whose journal is, or will be, at `path`.

    Shards that lie beside each other have the clock of the one that began first.
    """
    if configuration.chat.date is not None:
        return Clock.of(configuration.chat.date)
    recorded = [] if path is None else [*_recorded([path]), *sorted(_others(path))]
    return Clock.of(recorded[0]) if recorded else Clock.now()


def recorded_clock(run: RunFile) -> Clock:
    """The clock of a job that has run."""
    return Clock.of(run.fingerprints["clock"]) if "clock" in run.fingerprints else Clock.now()


def log_clock(clock: Clock, configuration: Configuration) -> None:
    """Log a template that writes the time, once prompts are made.

    Raises UsageError for a date that is set and that no template asks for.
    """
    said = clock.in_words()
    if said is not None:
        log(said)
    elif configuration.chat.date is not None:
        raise UsageError(
            f"chat.date {configuration.chat.date}: no chat template asks for the time: leave it out"
        )


def _others(path: Path) -> Iterator[str]:
    return _recorded([other for other in family(whole_path(path)) if other != path])


def _recorded(journals: list[Path]) -> Iterator[str]:
    for journal in journals:
        with contextlib.suppress(JournalError, ValueError):  # another place reports a broken one
            run = RunFile.read(run_file_path(journal))
            if run is not None and "clock" in run.fingerprints:
                yield Clock.of(run.fingerprints["clock"]).moment.isoformat()
