"""A journal that may be there: its run file and its records, read where they changed.

What was read is read again only where the journal, or its run file, is another than it was: so what
a run learns before it holds the journal is true afterwards, and costs no second reading.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sharegen.common.shard import Shard
from sharegen.results.journal.family import shard_named, whole_path
from sharegen.results.journal.keys import Key, Keys
from sharegen.results.journal.places import FOLDER
from sharegen.results.journal.record import Record, RecordReader, note_row, note_text, read
from sharegen.results.journal.rereading import Golds
from sharegen.results.journal.run_file import REPAIR, RunFile, run_file_path

_State = tuple[int, int, int] | None  # of a file: its inode, size and time of change


@dataclass
class OnRecord:
    """What a journal has, by its lines.

    finished: keys of the samples on record, those that failed included; a bad row is in `failed`
        instead, by problem id with the reason, until there are samples of it.
    errors: why samples failed, by their keys, until they are drawn.
    rows: of the samples, what each row is known by (`Record.row`), by problem id; texts: of those
        that are chats, `Record.text_hash`; golds: the gold answers in their lines.
    lengths: how many samples have so many tokens and such a finish reason.
    duplicates: numbers of the lines whose key an earlier line already had; the first one counts.
    end: bytes of the whole lines; what follows was cut short. unterminated: whether the last line
        is whole but has no newline.
    """

    finished: Keys = field(default_factory=Keys)
    failed: dict[str, str | None] = field(default_factory=dict)
    errors: dict[Key, str | None] = field(default_factory=dict)
    rows: dict[str, str | None] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    golds: Golds = field(default_factory=Golds)
    lengths: Counter[tuple[int, str | None]] = field(default_factory=Counter)
    duplicates: list[int] = field(default_factory=list)
    end: int = 0
    unterminated: bool = False

    @classmethod
    def read(cls, reader: RecordReader) -> OnRecord:
        """What a reader finds, all of it."""
        found = cls()
        for record in reader:
            found.note(record)
        found.duplicates = reader.duplicates
        found.end, found.unterminated = reader.end, reader.unterminated
        return found

    def note(self, record: Record) -> None:
        """Count a line in."""
        if not record.is_sample:
            self.failed[record.problem_id] = record.error
            return
        key = record.key
        self.finished.add(key)
        self.failed.pop(record.problem_id, None)
        if record.is_drawn:
            self.errors.pop(key, None)
            self.lengths[record.num_tokens, record.finish_reason] += 1
        else:
            self.errors[key] = record.error
        note_row(self.rows, record)
        note_text(self.texts, record)
        self.golds.note(record)

    @property
    def undrawn(self) -> Keys:
        """The samples that failed."""
        return Keys(self.errors)

    @property
    def drawn(self) -> Keys:
        """The samples that did not fail."""
        drawn = Keys()
        drawn |= self.finished
        drawn -= self.undrawn
        return drawn


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
            self._on_record = state, OnRecord.read(self.records())
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
