"""Rows that are piped in: `--dataset -`.

They are kept under a name that their content gives, so that the same rows are the same dataset
when a job goes on, and can be read again when its journal is shown.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from sharegen.common.files import replace_file
from sharegen.errors import DataError, UsageError
from sharegen.workload.files.content import marked

NAME = "-"
_FOLDER = Path("runs") / ".sharegen"


def keep_rows() -> Path:
    """The file that holds what standard input has: JSONL, a JSON list, or lines of text.

    Raises UsageError where it is a terminal, DataError where it is empty or cannot be kept.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("--dataset -: nothing is piped in: give `... < rows.jsonl`, or a file")
    content = sys.stdin.buffer.read()
    if not content.strip():
        raise DataError("--dataset -: standard input is empty")
    digest = hashlib.blake2b(content, digest_size=8).hexdigest()
    path = _FOLDER / f"stdin-{digest}{_suffix(content)}"
    try:
        _FOLDER.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    except OSError as error:
        raise DataError(f"{path}: standard input cannot be kept: {error.strerror}") from None
    return path.resolve()


def _suffix(content: bytes) -> str:
    mark, encoding = marked(content)
    text = content[len(mark) :].decode(encoding, errors="replace")
    return {"{": ".jsonl", "[": ".json"}.get(text.lstrip()[:1], ".txt")
