"""What lies in a folder of journals: which jobs, by which models, how far they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sharegen.errors import DataError, JournalError
from sharegen.results.journal.found_journal import FoundJournal
from sharegen.results.journal.lock import seems_held
from sharegen.results.journal.output import begins_as_journal
from sharegen.results.journal.run_file import BESIDE, run_file_path


@dataclass(frozen=True)
class Listed:
    """A journal of a folder.

    samples: that are drawn; asked: of how many, None where no run told. written: when it was last.
    fault: why no more is known of it.
    """

    path: Path
    recipe: str | None
    dataset: str | None
    model: str | None
    samples: int
    asked: int | None
    written: datetime
    is_running: bool
    fault: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path), "written": self.written.isoformat()}


def journals_in(folders: list[Path]) -> Iterator[Listed]:
    """The journals in folders, or of these names, the one last written first.

    Raises DataError for what is not there.
    """
    paths: dict[Path, None] = {}
    for folder in folders:
        if not folder.exists():
            raise DataError(
                f"{folder}: no such folder or journal: name yours, or run a job, which makes runs/"
            )
        found = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
        paths |= dict.fromkeys(path for path in found if _is_journal(path))
    yield from sorted(map(_listed, paths), key=lambda listed: listed.written, reverse=True)


def _is_journal(path: Path) -> bool:
    return path.is_file() and (run_file_path(path).exists() or begins_as_journal(path))


def _listed(path: Path) -> Listed:
    journal = FoundJournal(path, BESIDE)
    settings: dict[str, Any] = {}
    asked = fault = None
    samples = 0
    try:
        samples = len(journal.on_record().drawn)
        if journal.run is None:
            fault = "has no run file"
        else:
            settings, asked = journal.run.settings, journal.run.counts.get("samples_asked")
    except JournalError as error:
        fault = str(error).removeprefix(f"{path}: ")
    dataset = settings.get("dataset")
    source = dataset.get("source") if isinstance(dataset, dict) else None
    return Listed(
        path,
        settings.get("recipe"),
        settings.get("preset") or _name(source),
        _name(settings.get("model")),
        samples,
        asked,
        datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(microsecond=0),
        seems_held(path),
        fault,
    )


def _name(place: Any) -> str | None:
    """A folder's or file's own name; a hub id as it is."""
    if not isinstance(place, str):
        return None
    return Path(place).name if Path(place).is_absolute() else place
