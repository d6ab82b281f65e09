"""Rows of a dataset, from a local file, a folder or the Hugging Face hub.

JSON, JSONL and text are read here, strictly and with line numbers in the errors; CSV, Parquet and
the hub are the `datasets` library's.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sharegen.errors import DataError


@dataclass(frozen=True)
class Row:
    """One row as it stands in the data: its index in the split, and where to find it."""

    index: int
    where: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """The rows of one split and a hash of what they were read from."""

    rows: Sequence[Row]
    fingerprint: str


def read_rows(source: str, config: str | None, split: str) -> Rows:
    """All rows of a split. Raises DataError for what is missing, empty or malformed."""
    path = Path(source)
    if path.is_dir():
        found = _read_files(_split_files(path, split))
    elif path.is_file():
        found = _read_files([path])
    elif path.is_absolute():
        raise DataError(f"{source}: no such file or folder")
    else:
        found = _read_hub(source, config, split)
    if not found.rows:
        raise DataError(f"{source}: has no rows" + ("" if path.is_file() else f" in {split!r}"))
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
            for where, values in reader(path):
                rows.append(Row(len(rows), where, values))
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
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return raw.decode("utf-8-sig")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines with something on them, numbered from 1."""
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if line.strip():
            yield number, line.removesuffix("\r")


def _read_jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _lines(path):
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise DataError(f"{path}, line {number}: malformed JSON: {reason}") from None
        if not isinstance(values, dict):
            raise DataError(f"{path}, line {number}: is not a JSON object")
        yield f"{path}, line {number}", values


def _read_json(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    text = _text(path)
    if not text.strip():
        return
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object a line, under another name
            yield from _read_jsonl(path)
            return
        raise DataError(f"{path}, line {error.lineno}: malformed JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: malformed JSON: {error}") from None
    if not isinstance(values, list):
        values = [values]
    for index, row in enumerate(values):
        if not isinstance(row, dict):
            raise DataError(f"{path}, item {index}: is not a JSON object")
        yield f"{path}, item {index}", row


def _read_text(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in _lines(path):
        yield f"{path}, line {number}", {"text": line}


def _read_table(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
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


_READERS: dict[str, Callable[[Path], Iterator[tuple[str, dict[str, Any]]]]] = {
    ".jsonl": _read_jsonl,
    ".json": _read_json,
    ".txt": _read_text,
    ".csv": _read_table,
    ".parquet": _read_table,
}


_WITHOUT_SCRIPT = ("codeparrot/apps",)
"""Datasets on the hub with a loading script that no longer runs, and a JSONL file a split."""


def _download(source: str, name: str, reachable: bool) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(source, name, repo_type="dataset", local_files_only=not reachable))


def _read_hub(source: str, config: str | None, split: str) -> Rows:
    """A split from the hub, or from the local cache when the hub does not answer."""
    from sharegen.common.hub import hub_is_reachable

    reachable = hub_is_reachable()
    import datasets
    from datasets.exceptions import DatasetsError

    datasets.config.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE or not reachable
    with _quiet_datasets():
        try:
            if source in _WITHOUT_SCRIPT:
                return _read_files([_download(source, f"{split}.jsonl", reachable)])
            table = datasets.load_dataset(source, config, split=split)
        except (DatasetsError, OSError, ValueError, RuntimeError) as error:
            if not reachable:
                raise DataError(
                    f"--dataset {source}: the hub is not reachable and it is not in the local "
                    "cache: give a local file"
                ) from None
            raise DataError(f"--dataset {source}: {_first_line(error)}") from None
    identity = [source, config, split, sorted(table.info.download_checksums or {}), len(table)]
    digest = hashlib.blake2b(json.dumps(identity).encode(), digest_size=16)
    where = f"{source} {split}"
    rows = [Row(i, f"{where}, row {i}", dict(values)) for i, values in enumerate(table)]
    return Rows(rows, digest.hexdigest())


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
