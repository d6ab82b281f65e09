"""What a run finds of its job: its journal and those beside it, each read once."""

from __future__ import annotations

from pathlib import Path

from sharegen.results.journal.family import family, whole_path
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.run_file import ADOPT, BESIDE


class JournalFamily:
    """The journals of one job, by the path of the one that a run writes."""

    def __init__(self, path: Path, found: FoundJournal | None = None):
        """Take the journal's path; files are read when they are asked for. found: a journal that
        was looked at already, which may be the one at `path`.
        """
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
