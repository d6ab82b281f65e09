"""Options that several commands of `python -m benchmarks` have."""

from __future__ import annotations

import re
from typing import Annotated

import typer

COMMIT = r"[0-9a-f]{7,40}(\+changes)?"
"""A commit as results name it; with "+changes" where the clone had some."""


def parse_commit(text: str) -> str:
    """Refused before anything is measured, for a result without its commit is none."""
    if not re.fullmatch(COMMIT, text):
        raise typer.BadParameter(f"{text!r} is no commit: give 7 to 40 hexadecimal digits")
    return text


Commit = Annotated[
    str | None,
    typer.Option(
        help="The code's commit, where this is no clone with its history.",
        parser=parse_commit,
        metavar="TEXT",
    ),
]
