"""Where what belongs to a journal lies: in a hidden folder beside it.

So `datasets.load_dataset("runs/")` and a shell's `runs/*.jsonl` find samples alone.
"""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = ".sharegen"


def hidden(beside: Path) -> Path:
    """`runs/a.run.json` -> `runs/.sharegen/a.run.json`."""
    return beside.parent / FOLDER / beside.name


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
