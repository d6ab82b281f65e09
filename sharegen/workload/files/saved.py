"""Folders that `datasets` wrote with `save_to_disk`: which of their files have the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.errors import DataError
from sharegen.workload.files.content import read_text

_SPLITS, _STATE = "dataset_dict.json", "state.json"


def is_saved(folder: Path) -> bool:
    return (folder / _SPLITS).is_file() or is_one_split(folder)


def is_one_split(folder: Path) -> bool:
    """Whether it is a Dataset, and no DatasetDict: it has the rows of one split."""
    return (folder / _STATE).is_file() and (folder / "dataset_info.json").is_file()


def saved_files(folder: Path, split: str) -> list[Path]:
    """The Arrow files of a split, in order; of a Dataset, those that it has.

    Raises DataError for a split that is not there, and for a folder that is not whole.
    """
    if not is_one_split(folder):
        splits = _field(folder / _SPLITS, "splits")
        if split not in splits:
            raise DataError(
                f"{folder}: has no split {split!r} (it has {', '.join(map(str, splits))}): use "
                "--split"
            )
        folder = folder / split
    state = folder / _STATE
    names = [str(file.get("filename")) for file in _field(state, "_data_files")]
    return [folder / Path(name).name for name in names]


def _field(path: Path, name: str) -> list[Any]:
    try:
        value = json_values.parse(read_text(path))
    except JsonError as error:
        raise DataError(f"{path}, line {error.line}: malformed JSON: {error}") from None
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise DataError(f"{path}: has no list {name!r}: write the dataset with save_to_disk anew")
    return found
