"""Rows of a dataset, from a local file, a folder or the Hugging Face hub.

JSON, JSONL and text are read here, with line numbers in the errors; CSV, Parquet and the hub are
the `datasets` library's. A line or item that is no row costs no other: it is a row with a fault.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from sharegen.common import json_values
from sharegen.common.json_values import JsonError, JsonLimitError
from sharegen.errors import DataError


@dataclass(frozen=True)
class Row:
    """One row as it stands in the data: its index in the split, and where to find it.

    fault: why it cannot be read, in words that complete "line 3: ..."; it has no values then.
    """

    index: int
    where: str
    values: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of one split and a hash of what they were read from; commit: on the hub."""

    rows: Sequence[Row]
    fingerprint: str
    commit: str | None = None

    @property
    def first(self) -> Row:
        """The first one that could be read."""
        return next(row for row in self.rows if row.fault is None)


_Found: TypeAlias = "dict[str, Any] | str"
"""A row's values, or its fault."""


def read_rows(source: str, config: str | None, split: str, revision: str | None = None) -> Rows:
    """All rows of a split, of which at least one can be read.

    config, revision: of a dataset on the hub; by default its only one, and the main one.

    Raises DataError for what is missing, empty or malformed.
    """
    path = Path(source)
    if path.is_dir():
        found = _read_files(_split_files(path, split))
    elif path.is_file():
        found = _read_files([path])
    elif path.is_absolute():
        raise DataError(f"{source}: no such file or folder")
    else:
        found = _read_hub(source, config, split, revision)
    if not found.rows:
        raise DataError(f"{source}: has no rows" + ("" if path.is_file() else f" in {split!r}"))
    if all(row.fault is not None for row in found.rows):
        raise DataError(f"{found.rows[0].where}: {found.rows[0].fault}")
    return found


def read_text(path: Path) -> str:
    """A whole text file. Raises DataError when it cannot be read or is not UTF-8."""
    with _explained(path):
        return _text(path)


def file_hash(path: Path) -> str:
    """A hash of a file's content. Raises DataError when it cannot be read."""
    with _explained(path), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what a file does to its reader into one line."""
    try:
        yield
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read: {reason}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text at byte {error.start}") from None


def _read_files(paths: Sequence[Path]) -> Rows:
    digest = hashlib.blake2b(digest_size=16)
    rows: list[Row] = []
    for path in paths:
        reader = _READERS.get(_suffix(path))
        if reader is None:
            raise DataError(f"{path}: unknown kind of file: give one of {', '.join(_READERS)}")
        digest.update(file_hash(path).encode())
        with _explained(path):
            for where, found in reader(path):
                if isinstance(found, str):
                    rows.append(Row(len(rows), where, {}, found))
                else:
                    rows.append(Row(len(rows), where, found))
    return Rows(rows, digest.hexdigest())


def _suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return name[name.rfind(".") :] if "." in name else ""


def _split_files(folder: Path, split: str) -> list[Path]:
    """The files of a split: `test.jsonl`, `gsm8k_test.jsonl`, `test-00000-of-00002.parquet`."""
    files = sorted(path for path in folder.iterdir() if _suffix(path) in _READERS)
    named: list[Callable[[str], bool]] = [
        lambda stem: stem == split,
        lambda stem: stem.startswith((f"{split}-", f"{split}_", f"{split}.")),
        lambda stem: stem.endswith((f"-{split}", f"_{split}", f".{split}")),
    ]
    for matches in named:
        found = [path for path in files if matches(path.name.removesuffix(".gz").rsplit(".")[0])]
        if found:
            return found
    has = ", ".join(path.name for path in files) or "no data files"
    raise DataError(f"{folder}: has no file of the split {split!r} (it has {has}): use --split")


def _text(path: Path) -> str:
    return _bytes(path).decode("utf-8-sig")


def _bytes(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines with something on them, numbered from 1."""
    content = _bytes(path).removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield number, line.removesuffix(b"\r")


def _row_of(text: str | bytes) -> _Found:
    try:
        values = json_values.parse(text)
    except JsonError as error:
        return f"malformed JSON: {error}"
    return values if isinstance(values, dict) else "is not a JSON object"


def _read_jsonl(path: Path) -> Iterator[tuple[str, _Found]]:
    for number, line in _lines(path):
        yield f"{path}, line {number}", _row_of(line)


def _read_json(path: Path) -> Iterator[tuple[str, _Found]]:
    text = _text(path)
    if not text.strip():
        return
    found: list[_Found]
    try:
        values = json_values.parse(text)
    except JsonLimitError:
        is_list = text.lstrip().startswith("[")
        found = [_row_of(part) for part in (json_values.elements(text) if is_list else [text])]
    except JsonError as error:
        if str(error) == "Extra data":  # one object a line, under another name
            yield from _read_jsonl(path)
            return
        raise DataError(f"{path}, line {error.line}: malformed JSON: {error}") from None
    else:
        rows = values if isinstance(values, list) else [values]
        found = [row if isinstance(row, dict) else "is not a JSON object" for row in rows]
    for index, row in enumerate(found):
        yield f"{path}, item {index}", row


def _read_text(path: Path) -> Iterator[tuple[str, _Found]]:
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        try:
            yield where, {"text": line.decode()}
        except UnicodeDecodeError as error:
            yield where, f"is not UTF-8 text at byte {error.start}"


def _read_table(path: Path) -> Iterator[tuple[str, _Found]]:
    import datasets
    from datasets.exceptions import DatasetsError

    builder = {".csv": "csv", ".parquet": "parquet"}[_suffix(path)]
    if path.stat().st_size == 0:
        return
    with _quiet_datasets():
        try:
            table = datasets.load_dataset(builder, data_files=str(path), split="train")
        except (DatasetsError, ValueError, OSError, RuntimeError) as error:
            raise DataError(f"{path}: is not {builder}: {_first_line(error)}") from None
    for index, values in enumerate(table):
        yield f"{path}, row {index + 1}", dict(values)


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, _Found]]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".txt": _read_text,
    ".csv": _read_table,
    ".parquet": _read_table,
}


_WITHOUT_SCRIPT = ("codeparrot/apps",)
"""Datasets on the hub with a loading script that no longer runs, and a JSONL file a split."""


def _download(source: str, name: str, revision: str | None, reachable: bool) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(
        hf_hub_download(
            source, name, repo_type="dataset", revision=revision, local_files_only=not reachable
        )
    )


def _read_hub(source: str, config: str | None, split: str, revision: str | None) -> Rows:
    """A split from the hub, or from the local cache when the hub does not answer."""
    from sharegen.common.hub import cached_dataset, dataset_commit, hub_is_reachable

    reachable = hub_is_reachable()
    import datasets
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or not reachable
    named = source if revision is None else f"{source} at revision {revision}"
    cached = None if reachable else cached_dataset(source, revision)
    if cached is None and revision is not None and not reachable:
        raise DataError(_not_cached(named))
    with _quiet_datasets():
        try:
            commit = None if cached is None else cached.name
            if reachable:
                commit = dataset_commit(source, revision)
            if source in _WITHOUT_SCRIPT:
                rows = _read_files([_download(source, f"{split}.jsonl", commit, reachable)])
                return replace(rows, commit=commit)
            # Offline, the library would take any revision that it has.
            is_pinned = cached is not None and revision is not None
            place = str(cached) if is_pinned else source
            at = commit if reachable else None
            table = datasets.load_dataset(place, config, split=split, revision=at)
        except RevisionNotFoundError:
            raise DataError(
                f"--dataset {source}: the hub has no revision {revision} of it: give a branch, a "
                "tag or a commit of it, or none for the main one"
            ) from None
        except (HfHubHTTPError, DatasetsError, OSError, ValueError, RuntimeError) as error:
            if not reachable:
                raise DataError(_not_cached(named)) from None
            raise DataError(f"--dataset {named}: {_first_line(error)}") from None
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([source, config, split, commit, len(table)]).encode())
    where = f"{source} {split}"
    rows_of_table = [Row(i, f"{where}, row {i}", dict(values)) for i, values in enumerate(table)]
    return Rows(rows_of_table, digest.hexdigest(), commit)


def _not_cached(named: str) -> str:
    return (
        f"--dataset {named}: the hub is not reachable and it is not in the local cache: give a "
        "local file"
    )


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    """Without the library's own progress bars and log."""
    import datasets

    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        datasets.enable_progress_bars()


def _first_line(error: BaseException) -> str:
    """What went wrong at the bottom of a chain of errors, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
