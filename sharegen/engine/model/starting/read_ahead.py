"""The weights of a model are read from the disk while Python imports what will load them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path

_ENDINGS = (".safetensors", ".gguf")
_SHARE = 0.5  # of the machine's memory: of larger ones the end drives out the beginning


def read_ahead(model: Path) -> threading.Thread | None:
    """Have the system read a model's folder, or file, into memory; nobody need wait for it.

    Returns the thread that asks for it, or None where nothing is to be read.
    """
    files = weight_files(model)
    if not files or not hasattr(os, "posix_fadvise"):  # macOS
        return None
    thread = threading.Thread(target=_ask_for, args=(files,), daemon=True)
    thread.start()
    return thread


def weight_files(model: Path) -> list[Path]:
    """The files with weights, where they are no more than memory holds beside all else."""
    try:
        files = sorted(model.iterdir()) if model.is_dir() else [model]
        files = [file for file in files if file.suffix in _ENDINGS and file.is_file()]
        total = sum(file.stat().st_size for file in files)
    except OSError:  # who loads the model says what is wrong
        return []
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return files if total <= memory * _SHARE else []


def _ask_for(files: Sequence[Path]) -> None:
    for file in files:
        with contextlib.suppress(OSError), file.open("rb", buffering=0) as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
