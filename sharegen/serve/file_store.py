"""Files that clients upload, and those that batches write for them: in a folder of the server's.

A file is its content, beside a description in JSON. What has no description is no file: a batch's
answers have none until the batch ends, and an upload that was cut off never gets one.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sharegen.common.files import make_folders, replace_file
from sharegen.errors import DataError, JournalError, UsageError
from sharegen.results.journal.appended import AppendedFile
from sharegen.serve.faults import Refusal
from sharegen.serve.limits import Limits

_UPLOADED = ".upload"  # how the name of what is being written ends
_PIECE = 1 << 20


class StoredFile(BaseModel):
    """A file as OpenAI's object has it. bytes: of its content; created_at: in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"
    expires_at: int | None = None


class FileStore:
    """The files in a folder, which no other server has meanwhile.

    Raises UsageError where the folder cannot be used, and DataError for a description that is none.
    """

    def __init__(self, folder: Path, limits: Limits) -> None:
        self.folder = folder
        self._limits = limits
        self._files: dict[str, StoredFile] = {}
        try:
            make_folders(folder / "files")
            self._lock = AppendedFile.open(folder / "server.lock", follow=False)
        except JournalError as error:
            raise UsageError(f"--batch-folder {folder}: {error}") from None
        except OSError as error:
            raise UsageError(
                f"--batch-folder {folder}: cannot be used: {error.strerror}: choose another one"
            ) from None
        for left in (folder / "files").glob(f"*{_UPLOADED}"):
            left.unlink(missing_ok=True)
        found = (read_description(path, StoredFile) for path in self._descriptions())
        for each in sorted(found, key=lambda one: (one.created_at, one.id)):
            self._files[each.id] = each

    def _descriptions(self) -> Iterator[Path]:
        return (self.folder / "files").glob("file-*.json")

    def close(self) -> None:
        """Let another server have the folder."""
        self._lock.close()

    def path_of(self, name: str) -> Path:
        """Where the content of a file lies, or is to lie. name: its id, which is the server's."""
        return self.folder / "files" / f"{name}.jsonl"

    def all(self) -> list[StoredFile]:
        """Every file, the newest first."""
        return list(reversed(self._files.values()))

    def find(self, name: str) -> StoredFile:
        """The file of an id. Raises Refusal where there is none."""
        found = self._files.get(name)
        if found is None:
            raise Refusal(404, f"there is no file {name!r:.80} here", "id", "file_not_found")
        return found

    def refuse_more(self) -> None:
        """Raise Refusal where the folder is full."""
        held = sum(map(_size, self.folder.rglob("*")))
        if held >= self._limits.storage:
            raise Refusal(
                507,
                f"the server's files have {held:,} bytes, and may have {self._limits.storage:,} "
                "(--max-storage): delete some",
                code="storage_full",
            )

    def take(self, content: BinaryIO, filename: str) -> StoredFile:
        """Keep what was uploaded. Raises Refusal for what is no batch, and OSError."""
        name = f"file-{secrets.token_hex(12)}"
        path = self.path_of(name)
        partial = path.with_suffix(_UPLOADED)
        try:
            with partial.open("xb") as file:
                shutil.copyfileobj(content, file, _PIECE)
            self._refuse_too_many(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return self.describe(name, filename, "batch")

    def _refuse_too_many(self, path: Path) -> None:
        most = self._limits.batch_requests
        with path.open("rb") as file:
            count = sum(not line.isspace() for line in file)
        if not count:
            raise Refusal(400, "the file is empty: a request a line is expected", "file")
        if count > most:
            raise Refusal(
                400,
                f"the file has {count:,} lines: a batch may have {most:,} (--max-batch-requests)",
                "file",
                "too_many_requests",
            )

    def describe(
        self, name: str, filename: str, purpose: Literal["batch", "batch_output"]
    ) -> StoredFile:
        """Make content that lies here a file. Raises OSError."""
        size = self.path_of(name).stat().st_size
        made = StoredFile(
            id=name, bytes=size, created_at=int(time.time()), filename=filename, purpose=purpose
        )
        write_description(self.path_of(name).with_suffix(".json"), made)
        self._files[name] = made
        return made

    def delete(self, name: str) -> None:
        """Forget a file. Raises Refusal where there is none, and OSError."""
        path = self.path_of(self.find(name).id)
        path.with_suffix(".json").unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        del self._files[name]


def _size(path: Path) -> int:
    """The bytes of a file, which may be gone by now."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def write_description(path: Path, value: BaseModel) -> None:
    """Write what a file, or a batch, is; by one rename. Raises OSError."""
    replace_file(path, value.model_dump_json(indent=1).encode() + b"\n")


def read_description(path: Path, kind: type[Any]) -> Any:
    """Read it again. Raises DataError where it is none."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        said = str(error).splitlines()[0]
        raise DataError(f"{path}: cannot be read: {said}: remove it with what it is of") from None
