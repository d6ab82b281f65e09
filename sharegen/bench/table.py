"""What a benchmark measured, as a person reads it: names and values, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


def print_table(result: Mapping[str, Any]) -> None:
    """A line for each value, numbers with three decimals."""
    for name, value in result.items():
        shown = f"{value:,.3f}" if isinstance(value, float) else value
        print(f"{name:>28}  {shown}", file=sys.stderr)
