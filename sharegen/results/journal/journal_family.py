"""What a run finds of its job: its journal and those beside it, each read once.

A journal is read again only where it, or its run file, is another than it was when it was read: so
what a run learns before it holds the journal is true afterwards, and costs no second reading.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sharegen.results.journal.family import family, whole_path
from sharegen.results.journal.journal import ADOPT, BESIDE
from sharegen.results.journal.keys import Key, Keys
from sharegen.results.journal.record import note_row, note_text, read
from sharegen.results.journal.rereading import Golds
from sharegen.results.journal.run_file import RunFile, run_file_path

_State = tuple[int, int, int] | None  # of a file: its inode, size and time of change


@dataclass
class OnRecord:
    """What a journal has: the samples that were drawn, why others were not, and its rows.

    errors: of samples that failed, and of rows that could not be asked. rows: what the row of each
    problem that has samples is known by; texts: likewise the text of its chat; golds: its gold
    answer.
    """

    drawn: Keys = field(default_factory=Keys)
    errors: dict[Key, str | None] = field(default_factory=dict)
    rows: dict[str, str | None] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    golds: Golds = field(default_factory=Golds)

    def samples(self, with_failed: bool) -> Iterator[Key]:
        """The samples that were drawn, and those that failed where they count."""
        yield from self.drawn
        if with_failed:
            yield from (key for key in self.errors if key.sample is not None)


class FoundJournal:
    """A journal that may be there, with its run file."""

    def __init__(self, path: Path, to_do: str):
        """to_do: what is advised where its run file is broken."""
        self.path = path
        self._to_do = to_do
        self._run: tuple[_State, RunFile | None] | None = None
        self._on_record: tuple[_State, OnRecord] | None = None

    @property
    def size(self) -> int:
        """The size in bytes; 0 if the file does not exist."""
        state = _state(self.path)
        return 0 if state is None else state[1]

    @property
    def run(self) -> RunFile | None:
        """What made it. Raises JournalError where its run file is broken."""
        state = _state(run_file_path(self.path))
        if self._run is None or self._run[0] != state:
            self._run = state, RunFile.read(run_file_path(self.path), self._to_do)
        return self._run[1]

    def on_record(self) -> OnRecord:
        """What it has, of a file that is there. Raises JournalError where it is no journal."""
        state = _state(self.path)
        if self._on_record is None or self._on_record[0] != state:
            found = OnRecord()
            for record in read(self.path):
                if record.is_drawn:
                    found.drawn.add(record.key)
                else:
                    found.errors[record.key] = record.error
                if record.is_sample:
                    note_row(found.rows, record)
                    note_text(found.texts, record)
                    found.golds.note(record)
            self._on_record = state, found
        return self._on_record[1]


class JournalFamily:
    """The journals of one job, by the path of the one that a run writes."""

    def __init__(self, path: Path, found: FoundJournal | None = None):
        """found: a journal that was looked at already, which may be the one at `path`."""
        if found is None or found.path != path:
            found = FoundJournal(path, ADOPT)
        self.own = found
        self.whole = whole_path(path)
        self._others: dict[Path, FoundJournal] = {}

    def others(self) -> list[FoundJournal]:
        """The journals that exist now beside the run's own."""
        for path in family(self.whole):
            if path != self.own.path:
                self._others.setdefault(path, FoundJournal(path, BESIDE))
        return [journal for path, journal in self._others.items() if path.exists()]


def _state(path: Path) -> _State:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
