"""What a batch has so far: a line a request, in two files that only grow.

A line is written when its request has ended, whole or not at all. So a server that begins again
finds what it need not ask, whatever ended the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.results.export.openai import as_lines
from sharegen.results.journal.appended import AppendedFile
from sharegen.serve.batch import Batch, BatchCounts
from sharegen.serve.file_store import FileStore


class BatchOutput:
    """The files of a batch's answers and errors.

    done: the custom_ids of requests that have a line. Raises JournalError and OSError.
    """

    def __init__(self, store: FileStore, batch: Batch) -> None:
        self._store, self._batch = store, batch
        self.done: set[str] = set()
        self._answers = self._open(batch.output_name)
        self._completed = len(self.done)
        try:
            self._errors = self._open(batch.error_name)
        except BaseException:
            self._answers.close()
            raise
        self._failed = len(self.done) - self._completed

    def _open(self, name: str) -> AppendedFile:
        """The file, without a line that was cut off."""
        file = AppendedFile.open(self._store.path_of(name), follow=False)
        try:
            found, size = _whole_lines(file.path)
            file.cut(size)
        except BaseException:
            file.close()
            raise
        self.done |= found
        return file

    def counts(self, total: int) -> BatchCounts:
        """How many of so many requests have ended, and how."""
        return BatchCounts(total=total, completed=self._completed, failed=self._failed)

    def write(self, line: Mapping[str, Any]) -> None:
        """Keep the line of a request that has ended. Raises JournalError and OSError."""
        is_answer = line["response"]["status_code"] == 200
        (self._answers if is_answer else self._errors).append(as_lines([line]))
        self.done.add(line["custom_id"])
        self._completed += is_answer
        self._failed += not is_answer

    def publish(self) -> dict[str, str | None]:
        """Let clients have the files; one without lines is none. Raises OSError.

        Returns their ids, by the fields of the batch.
        """
        found: dict[str, str | None] = {}
        for field, file in (("output_file_id", self._answers), ("error_file_id", self._errors)):
            file.sync()
            name = file.path.stem
            found[field] = name if file.size else None
            if file.size:
                kind = field.removesuffix("_file_id")
                self._store.describe(name, f"{self._batch.id}_{kind}.jsonl", "batch_output")
            else:
                with suppress(FileNotFoundError):
                    file.path.unlink()
        return found

    def close(self) -> None:
        """Let go of the files."""
        with closing(self._answers), closing(self._errors):
            pass


def _whole_lines(path: Path) -> tuple[set[str], int]:
    """The custom_ids of the lines up to the first that is not whole, and where that begins."""
    found: set[str] = set()
    size = 0
    with path.open("rb") as file:
        for line in file:
            try:
                name = json_values.parse(line)["custom_id"] if line.endswith(b"\n") else None
            except (JsonError, LookupError, TypeError):
                name = None
            if not isinstance(name, str):
                break
            found.add(name)
            size += len(line)
    return found, size
