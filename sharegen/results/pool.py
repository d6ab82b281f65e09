"""Several journals as one: files of one and the same job are pooled, others stay apart.

A job may be split over files (the first thousand problems here, the rest there), and then votes
over all of them. Two jobs that differ in model, prompts or seed are never mixed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from sharegen.results.record import Key, Record, read
from sharegen.results.run_file import RunFile, run_file_path


class Pool:
    """The journals of one job, read as one.

    files: in the order given; duplicates: after reading, per file the numbers of the lines that
        were left out because their key came before in that file.
    """

    def __init__(self, files: list[Path]):
        self.files = files
        self.duplicates: dict[Path, list[int]] = {}

    @property
    def name(self) -> str:
        return ", ".join(str(path) for path in self.files)

    def records(self) -> Iterator[Record]:
        """Every key once: the first file's record wins. Raises JournalError as `read` does."""
        seen: set[Key] = set()
        for path in self.files:
            reader = read(path)
            for record in reader:
                if record.key not in seen:
                    seen.add(record.key)
                    yield record
            self.duplicates[path] = reader.duplicates


def pool(files: Iterable[Path]) -> list[Pool]:
    """Group files by what made them; a file without a run.json is a pool of its own."""
    pools: dict[str, Pool] = {}
    for path in dict.fromkeys(files):
        run = RunFile.read(run_file_path(path))
        identity = json.dumps(run.identity, sort_keys=True) if run else f"without: {path}"
        pools.setdefault(identity, Pool([])).files.append(path)
    return list(pools.values())
