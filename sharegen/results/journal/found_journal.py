"""A journal that may be there: its run file and its records, read where they changed.

What was read is read again only where the journal, or its run file, is another than it was: so what
a run learns before it holds the journal is true afterwards, and costs no second reading.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharegen.common.shard import Shard
from sharegen.results.journal.family import shard_named, whole_path
from sharegen.results.journal.keys import Key, Keys
from sharegen.results.journal.places import FOLDER
from sharegen.results.journal.record import RecordReader, note_row, note_text, read
from sharegen.results.journal.rereading import Golds
from sharegen.results.journal.run_file import REPAIR, RunFile, run_file_path

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


@dataclass(frozen=True)
class OwnLines:
    """The lines of a journal that this process wrote: those from the byte `start` on.

    section: `answer` of the recipe by which the answers in them were read.
    """

    start: int
    section: Mapping[str, Any] | None


class FoundJournal:
    """A journal that may be there, with its run file.

    own_lines: those that this process wrote, if any: nothing of them needs to be read anew.
    """

    def __init__(self, path: Path, to_do: str = REPAIR):
        """Find the files. to_do: what is advised where its run file is broken."""
        self.path = path
        self.own_lines: OwnLines | None = None
        self._to_do = to_do
        self._run: tuple[_State, RunFile | None] | None = None
        self._on_record: tuple[_State, OnRecord] | None = None

    @property
    def shard(self) -> Shard | None:
        """Which shard's it is, by its name."""
        return shard_named(self.path)

    @property
    def whole(self) -> Path:
        """The name of the whole job's journal."""
        return whole_path(self.path)

    @property
    def size(self) -> int:
        """The size in bytes; 0 if the file does not exist."""
        state = _state(self.path)
        return 0 if state is None else state[1]

    @property
    def run_file(self) -> Path:
        """Where its run file is."""
        return run_file_path(self.path)

    @property
    def run(self) -> RunFile | None:
        """What made it. Raises JournalError where its run file is broken."""
        state = _state(self.run_file)
        if self._run is None or self._run[0] != state:
            self._run = state, RunFile.read(self.run_file, self._to_do)
        return self._run[1]

    def records(self) -> RecordReader:
        """Read its records as they are now, one after the other."""
        return read(self.path)

    def on_record(self) -> OnRecord:
        """What it has, of a file that is there. Raises JournalError where it is no journal."""
        state = _state(self.path)
        if self._on_record is None or self._on_record[0] != state:
            found = OnRecord()
            for record in self.records():
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


def journals_with_run_files(folder: Path) -> list[FoundJournal]:
    """The journals of a folder, whether they are still there, by the run files that are."""
    names = sorted(path.name for path in (folder / FOLDER).glob("*.run.json"))
    return [FoundJournal(folder / f"{name.removesuffix('.run.json')}.jsonl") for name in names]


def _state(path: Path) -> _State:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
