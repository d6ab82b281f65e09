"""Rows of a dataset, from a local file, a folder or the Hugging Face hub.

Local files are read here, as they are now, by `files/`; the hub is the `datasets` library's. A line
or item that is no row costs no other: it is a row with a fault.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sharegen.common.json_values import is_nan
from sharegen.errors import DataError
from sharegen.workload.files.arrow import arrow_errors, read_parquet, read_stream, rows_of
from sharegen.workload.files.content import FileContent, opened, suffix_of
from sharegen.workload.files.csv_table import read_csv, read_table, read_tsv
from sharegen.workload.files.lines import Found, read_json, read_jsonl, read_text_lines
from sharegen.workload.files.saved import is_one_split, is_saved, saved_files
from sharegen.workload.files.splits import split_files

Reader = Callable[[FileContent], Iterator[tuple[str, Found]]]

READERS: dict[str, Reader] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".txt": read_text_lines,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".parquet": read_parquet,
}
"""What reads a file, by the end of its name."""

MAX_ROWS = 10_000_000
"""More than any job draws answers for, and as many as the memory of a machine holds."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as it stands in the data: its index in the split, and where to find it.

    fault: why it cannot be read, in words that complete "line 3: ..."; it has no values then.
    """

    index: int
    where: str
    values: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class DatasetRows:
    """The rows of one split and a hash of what they were read from; commit: on the hub."""

    rows: Sequence[Row]
    fingerprint: str
    commit: str | None = None

    @property
    def first(self) -> Row:
        """The first one that could be read."""
        return next(row for row in self.rows if row.fault is None)


def read_rows(
    source: str, config: str | None, split: str, revision: str | None = None
) -> DatasetRows:
    """All rows of a split, of which at least one can be read.

    config, revision: of a dataset on the hub; by default its only one, and the main one.

    Raises DataError for what is missing, empty or malformed.
    """
    path = Path(source)
    if path.is_dir() and is_saved(path):
        found = _read_files(saved_files(path, split), read_stream)
    elif path.is_dir():
        found = _read_files(split_files(path, split, READERS.keys()))
    elif path.is_file():
        found = _read_files([path])
    elif path.is_absolute():
        raise DataError(f"{source}: no such file or folder")
    else:
        found = _read_hub(source, config, split, revision)
    if not found.rows:
        where = "" if path.is_file() else f" in {split!r}"
        raise DataError(f"{source}: is empty: it has no rows{where}")
    if all(row.fault is not None for row in found.rows):
        raise DataError(f"{found.rows[0].where}: {found.rows[0].fault}")
    return found


def has_one_split(source: str) -> bool:
    """Whether its rows are all there is, whatever split is asked for: a file, a saved Dataset."""
    path = Path(source)
    return path.is_file() or is_one_split(path)


def _read_files(paths: Sequence[Path], reader: Reader | None = None) -> DatasetRows:
    """The rows of files that are one split; reader: of all, where their names do not tell it."""
    digest = hashlib.blake2b(digest_size=16)
    rows: list[Row] = []
    for path in paths:
        read = reader or READERS.get(suffix_of(path))
        if read is None:
            raise DataError(f"{path}: unknown kind of file: give one of {', '.join(READERS)}")
        with opened(path) as content:
            for where, found in read(content):
                rows.append(_row(len(rows), f"{path}, {where}", found))
            digest.update(content.fingerprint().encode())
    return DatasetRows(rows, digest.hexdigest())


def _row(index: int, where: str, found: Found) -> Row:
    """Raises DataError where there are too many."""
    if index >= MAX_ROWS:
        raise DataError(f"{where}: there are more than {MAX_ROWS:,} rows: make it several files")
    if isinstance(found, str):
        return Row(index, where, {}, found)
    if any(map(is_nan, found.values())):  # a missing value, as tables write it
        found = {name: None if is_nan(value) else value for name, value in found.items()}
    return Row(index, where, found)


_WITHOUT_SCRIPT = ("codeparrot/apps",)
"""Datasets on the hub with a loading script that no longer runs, and a JSONL file a split."""


def _download(source: str, name: str, revision: str | None, reachable: bool) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(
        hf_hub_download(
            source, name, repo_type="dataset", revision=revision, local_files_only=not reachable
        )
    )


def _read_hub(source: str, config: str | None, split: str, revision: str | None) -> DatasetRows:
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
            builder = datasets.load_dataset_builder(place, config, revision=at)
            tables = _delimited_files(builder, split)
            if tables is not None:
                return replace(_read_files(*tables), commit=commit)
            builder.download_and_prepare()
            table = builder.as_dataset(split=split)
            found = _rows_of_table(table, f"{source} {split}")
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
    return DatasetRows(found, digest.hexdigest(), commit)


def _delimited_files(builder: Any, split: str) -> tuple[list[Path], Reader] | None:
    """The files of a split that is CSV, here by now, with what reads their cells as text.

    None where it is anything else, which `datasets` reads: CSV it would take for numbers, dates
    and missing values.
    """
    import datasets
    from datasets.packaged_modules.csv.csv import CsvConfig

    how, files = builder.config, builder.config.data_files or {}
    plain = CsvConfig(sep=getattr(how, "sep", ","))
    ways = ("names", "header", "skiprows", "quotechar", "quoting", "escapechar", "encoding")
    if not isinstance(how, CsvConfig) or split not in files or len(how.sep) != 1:
        return None
    if any(getattr(how, way) != getattr(plain, way) for way in ways):
        return None
    found = datasets.DownloadManager().download_and_extract(list(files[split]))
    return [Path(path) for path in found], partial(read_table, delimiter=how.sep)


def _rows_of_table(table: Any, where: str) -> list[Row]:
    """The rows of a table of `datasets`, of which the images are not looked at."""
    with arrow_errors(Path(where), "a table"):
        tables = table.with_format("arrow").iter(batch_size=1_000)
        batches = (batch for part in tables for batch in part.to_batches())
        found = rows_of(where, table.data.schema, batches)
        return [_row(index, f"{where}, row {index}", values) for index, values in enumerate(found)]


def _not_cached(named: str) -> str:
    return (
        f"--dataset {named}: the hub is not reachable and it is not in the local cache: give a "
        "local file"
    )


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    """Run the block without the library's own progress bars and log."""
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
