"""What a command writes must not cost anyone a journal: asked before anything is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sharegen.common.files import check_is_file
from sharegen.errors import UsageError
from sharegen.results.journal.record import Record
from sharegen.results.journal.run_file import run_file_path

_SHOWN = 100  # characters of a name that is too long


def refuse_what_is_no_file(output: Path, flag: str = "--output") -> None:
    """Raises UsageError for a folder, a pipe, a device, and a name that no file can have.

    The names of what lies beside it, which are a few characters longer, count.
    """
    try:
        check_is_file(output)
        if len(os.fsencode(run_file_path(output).name)) > os.pathconf(".", "PC_NAME_MAX"):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    except OSError as error:
        name = str(output)
        shown = name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"
        raise UsageError(
            f"{flag} {shown}: cannot be written: {error.strerror}: choose another {flag}"
        ) from None


def refuse_journal(output: Path, flag: str = "--output") -> None:
    """Raises UsageError where there is a journal or the name is a run file's.

    A run.json whose journal is gone counts as one: what is written would pass for its samples.
    """
    if output.name.lower().endswith(".run.json"):
        raise UsageError(
            f"{flag} {output} is the name of a journal's run file: choose another {flag}"
        )
    # `a.run.json` is of `a.jsonl`, and no reason against a folder `a`
    is_recorded = output.suffix == ".jsonl" and run_file_path(output).exists()
    if is_recorded or begins_as_journal(output):
        raise UsageError(f"{flag} {output} is a journal: choose another {flag}")


def begins_as_journal(path: Path) -> bool:
    """Whether a file begins with a record, or has one behind lines that are none.

    A journal may have lost its run.json.
    """
    try:
        if not path.is_file():  # a pipe that nobody writes to would never answer
            return False
        with path.open("rb") as file:
            return any(map(_is_record, file))
    except OSError:
        return False


def _is_record(line: bytes) -> bool:
    try:
        Record.from_line(line)
    except ValueError:
        return False
    return True
