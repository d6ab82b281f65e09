"""Python that a model or a dataset wrote, parsed where it is not run."""

from __future__ import annotations

import ast
import warnings


def parsed(code: str) -> ast.Module | None:
    """The code's tree; None for what is no Python, or too deep or long for Python's own parser."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an escape or a comparison that it finds odd
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
