"""The time that the chat templates of a job see: as set, as the first run had it, or now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from sharegen.common.log import log
from sharegen.errors import JournalError, UsageError
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.journal_family import JournalFamily
from sharegen.results.journal.run_file import RunFile
from sharegen.workload.clock import Clock
from sharegen.workload.configuration import Configuration


def clock_of(configuration: Configuration, family: JournalFamily | None = None) -> Clock:
    """The clock of a job whose journals are, or will be, that family.

    Shards that lie beside each other have the clock of the one that began first.
    """
    if configuration.chat.date is not None:
        return Clock.of(configuration.chat.date)
    if family is None:
        return Clock.now()
    recorded = [*_recorded([family.own]), *sorted(_recorded(family.others()))]
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


def _recorded(journals: Iterable[FoundJournal]) -> Iterator[str]:
    for journal in journals:
        with contextlib.suppress(JournalError, ValueError):  # a broken one is told elsewhere
            run = journal.run
            if run is not None and "clock" in run.fingerprints:
                yield Clock.of(run.fingerprints["clock"]).moment.isoformat()
