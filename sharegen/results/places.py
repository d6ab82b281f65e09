"""Where what belongs to a journal lies: in a hidden folder beside it.

So `datasets.load_dataset("runs/")` and a shell's `runs/*.jsonl` find samples alone. Earlier
versions left these files beside the journal: there they are found, and whoever writes them next
moves them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = ".sharegen"


def hidden(beside: Path) -> Path:
    """`runs/a.run.json` -> `runs/.sharegen/a.run.json`."""
    return beside.parent / FOLDER / beside.name


def found(beside: Path) -> Path:
    """Where a file is, or is to be: in the folder, unless an earlier version left it beside."""
    place = hidden(beside)
    return beside if not os.path.lexists(place) and beside.is_file() else place


def settle(beside: Path) -> None:
    """Move a file that an earlier version left beside the journal into the folder.

    Raises OSError. Two may do so at a time.
    """
    if found(beside) == beside:
        make_folder(hidden(beside))
        with contextlib.suppress(FileNotFoundError):  # another was faster
            os.replace(beside, hidden(beside))


def make_folder(file: Path) -> None:
    """The folder that a file is to be in, on disk. Raises OSError."""
    if not file.parent.is_dir():
        file.parent.mkdir(exist_ok=True)
        sync_folder(file.parent.parent)


def sync_folder(folder: Path) -> None:
    """Make a file's new name durable, as fsync of the file alone does not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
