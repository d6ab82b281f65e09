"""Where what belongs to a journal lies: in a hidden folder beside it.

So `datasets.load_dataset("runs/")` and a shell's `runs/*.jsonl` find samples alone.
"""

from __future__ import annotations

from pathlib import Path

from sharegen.common.files import sync_folder

FOLDER = ".sharegen"


def hidden(beside: Path) -> Path:
    """Turn `runs/a.run.json` into `runs/.sharegen/a.run.json`; what lies there has its own beside
    it.
    """
    return beside if beside.parent.name == FOLDER else beside.parent / FOLDER / beside.name


def make_folder(file: Path) -> None:
    """The folder that a file is to be in, on disk. Raises OSError."""
    if not file.parent.is_dir():
        file.parent.mkdir(exist_ok=True)
        sync_folder(file.parent.parent)
