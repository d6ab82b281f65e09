"""A file of measurements, one a line, as a machine without a clone gives them back; and its import.

`python -m benchmarks card --results rows.jsonl` writes it, `python -m benchmarks import rows.jsonl`
makes a file in `benchmarks/results/` of each of its lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from benchmarks.measurement import RESULTS, Measurement, first_error, read, with_peers_of, write
from sharegen.common.files import replace_file
from sharegen.errors import DataError

SUFFIX = ".jsonl"


def read_results(path: Path) -> list[Measurement]:
    """Those of a folder, or of a file of lines; none where it is not there. Raises DataError."""
    if path.suffix != SUFFIX:
        return [read(each) for each in sorted(path.glob("*.json"))]
    if not path.exists():
        return []
    return list(_read_lines(path))


def _read_lines(path: Path) -> Iterator[Measurement]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            yield Measurement.model_validate_json(line)
        except ValidationError as error:
            raise DataError(f"{path}:{number}: {first_error(error)}") from error


def add_result(measurement: Measurement, path: Path) -> Path:
    """Add it to a folder, or to a file of lines; returns the file. Raises DataError."""
    if path.suffix != SUFFIX:
        return write(measurement, path)
    line = measurement.model_dump_json(exclude_defaults=True).encode() + b"\n"
    try:
        before = path.read_bytes() if path.exists() else b""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, before + line)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def import_results(path: Path, folder: Path = RESULTS) -> Iterator[str]:
    """Make a file of each line, and remove what it replaces; yields what was done.

    A measurement replaces older ones of its row on its card. One that was not written by the
    program that measured it may have only the first words of the card's name. Other programs that
    we measured beside the older one stay, as of another sitting. Raises DataError, before anything
    is written where a line is wrong.
    """
    if path.suffix != SUFFIX or not path.is_file():
        raise DataError(f"{path}: it is no file of results: `card --results FILE.jsonl` writes one")
    for measured in read_results(path):
        older = [each for each in read_results(folder) if _replaces(measured, each)]
        older.sort(key=lambda each: (each.date, each.name), reverse=True)
        if any(each.date > measured.date or _is(each, measured) for each in older):
            yield f"left out: {measured.name}: this one or a newer one is there"
            continue
        for each in older:
            measured = with_peers_of(measured, each)
        yield f"written: {write(measured, folder)}"
        for each in older:
            if each.name != measured.name:
                (folder / f"{each.name}.json").unlink()
                yield f"removed: {folder / each.name}.json"


def _replaces(new: Measurement, old: Measurement) -> bool:
    if (new.row, new.card.kind, new.card.count) != (old.row, old.card.kind, old.card.count):
        return False
    is_short = old.published is not None and new.card.name.startswith(old.card.name + " ")
    return is_short or new.card.name == old.card.name


def _is(found: Measurement, new: Measurement) -> bool:
    """Whether the file that is there came from this line."""
    return (found.name, found.commit) == (new.name, new.commit)
