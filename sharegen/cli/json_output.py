"""What `--json` prints: one JSON object on stdout, and nothing else there."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Print JSON, for programs; its keys are in docs/reference/formats.md."
    ),
]


def print_json(value: Any) -> None:
    """Print one object, in ASCII: half a surrogate pair in a name is spelled."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
