"""Which files of a folder are a split.

A split is one file, the numbered parts of one, or several files that are named for it. What else
is named for it and is not read is told: a guess between two files would be a wrong half of a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from sharegen.common.log import log
from sharegen.errors import DataError
from sharegen.workload.files.content import suffix_of

_PART = re.compile(
    r"(?P<whole>.*?)-(?P<number>\d{4,})-of-(?P<count>\d{4,})(-[0-9a-f]{8,})?", re.DOTALL
)
_BETWEEN = re.compile(r"[-_.\s()]+")
_SET_ASIDE = frozenset(
    ["old", "bak", "backup", "orig", "original", "copy", "tmp", "temp", "prev", "previous"]
)
_SHOWN = 20  # names in a message


def split_files(folder: Path, split: str, suffixes: Collection[str]) -> list[Path]:
    """The files of a split, in the order of their rows.

    They lie in the folder, in its `data`, or in a folder of the split's name. `test` is found as
    `test.jsonl`, then as `test-00000-of-00002.parquet`, then as a word at the beginning, at the
    end or within: `test_hard.jsonl`, `gsm8k.test.jsonl`, `v1_test_b.csv`.

    Raises DataError where there is none, and where it is not clear which one is meant.
    """
    is_name = split == Path(split).name
    inner = _data_files(folder / split, suffixes) if is_name else []
    for place in (folder, folder / "data"):
        found, others = _named(place, _data_files(place, suffixes), split)
        if found:
            _tell(folder, found, [*others, *inner], split)
            return found
    if inner:
        return _one_kind(folder / split, inner, split)
    has = _listed(path.name for path in _data_files(folder, suffixes)) or "no data files"
    raise DataError(f"{folder}: has no file of the split {split!r} (it has {has}): use --split")


def _data_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    files = (path for path in folder.iterdir() if not path.name.startswith("."))
    found = (path for path in files if suffix_of(path) in suffixes and path.is_file())
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[str | int]:
    """A key by which part 10 comes after part 9."""
    pieces = re.split(r"(\d+)", path.name)
    return [int(piece) if place % 2 else piece for place, piece in enumerate(pieces)]


def _named(folder: Path, files: Sequence[Path], split: str) -> tuple[list[Path], list[Path]]:
    """The files whose names say the split best, and the others whose names do."""
    asked = split.casefold()
    words = _BETWEEN.split(asked)
    ways: list[Callable[[str], bool]] = [
        lambda stem: stem == asked,
        lambda stem: (part := _PART.fullmatch(stem)) is not None and part["whole"] == asked,
        lambda stem: _begins(_BETWEEN.split(stem), words),
        lambda stem: _begins(_BETWEEN.split(stem)[::-1], words[::-1]),
        lambda stem: _holds(_BETWEEN.split(stem), words),
    ]
    named = [path for path in files if _holds(_BETWEEN.split(_stem(path)), words)]
    for way in ways:
        found = [path for path in named if way(_stem(path))]
        if found:
            chosen = _one_kind(folder, found, split)
            return chosen, [path for path in named if path not in chosen]
    return [], []


def _stem(path: Path) -> str:
    name = path.name.casefold().removesuffix(".gz")
    return name.removesuffix(suffix_of(path))


def _begins(words: Sequence[str], wanted: Sequence[str]) -> bool:
    return list(words[: len(wanted)]) == list(wanted)


def _holds(words: Sequence[str], wanted: Sequence[str]) -> bool:
    return any(_begins(words[place:], wanted) for place in range(len(words)))


def _one_kind(folder: Path, files: Sequence[Path], split: str) -> list[Path]:
    """The files, which are one split together. Raises DataError where they are not."""
    if len(files) == 1 and _PART.fullmatch(_stem(files[0])) is None:
        return list(files)
    which = f"{folder}: {_listed(path.name for path in files)} are all named for the split"
    choose = "give the file itself as --dataset"
    if len({suffix_of(path) for path in files}) > 1 or len(set(map(_stem, files))) < len(files):
        raise DataError(f"{which} {split!r}, in two formats: {choose}")
    aside = [path for path in files if _SET_ASIDE & set(_BETWEEN.split(_stem(path)))]
    if aside:
        raise DataError(f"{which} {split!r}, and {aside[0].name} looks like a copy: {choose}")
    parts = [_PART.fullmatch(_stem(path)) for path in files]
    counts = {(part["whole"], part["count"]) for part in parts if part is not None}
    if len(counts) > 1 or (counts and None in parts):
        raise DataError(f"{which} {split!r}, and are parts of different files: {choose}")
    for _, count in counts:
        there = {int(part["number"]) for part in parts if part is not None}
        missing = sorted(set(range(int(count))) - there)
        if missing:
            raise DataError(
                f"{folder}: of the {int(count)} parts of {split!r} number {missing[0]} is missing"
            )
    return list(files)


def _tell(folder: Path, chosen: Sequence[Path], others: Sequence[Path], split: str) -> None:
    read = _listed(path.name for path in chosen)
    if others:
        left = _listed(str(path.relative_to(folder)) for path in others)
        log(f"{folder}: {split!r} is read from {read}, and not from {left}")
    elif len(chosen) > 1 and _PART.fullmatch(_stem(chosen[0])) is None:
        log(f"{folder}: {split!r} is read from {read} together")


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _SHOWN
    return ", ".join(known[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
