"""Python that a model or a dataset wrote, parsed where it is not run."""

from __future__ import annotations

import ast
import sys
import warnings

_DIGITS = 50_000
"""The most digits of a number in a program that is parsed: parsing takes quadratic time."""


def parsed(code: str) -> ast.Module | None:
    """The code's tree; None for what is no Python, or too deep or long for Python's own parser."""
    try:
        return _parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def leading_part(code: str, tries: int) -> str:
    """The longest beginning of whole statements that is Python, as far as `tries` attempts find it.

    Each attempt drops the outermost statement that the compiler stumbles over, and what follows.
    """
    lines = code.splitlines(keepends=True)
    for _ in range(tries):
        try:
            _parse("".join(lines))
        except SyntaxError as error:
            end = min(error.lineno or 1, len(lines))
            while end > 0 and not lines[end - 1][:1].strip():
                end -= 1
            del lines[max(end - 1, 0) :]
        except (ValueError, RecursionError, MemoryError):
            return ""
        else:
            return "".join(lines)
    return ""


def _parse(code: str) -> ast.Module:
    digits = sys.get_int_max_str_digits()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an escape or a comparison that it finds odd
        sys.set_int_max_str_digits(max(digits, _DIGITS) if digits else 0)
        try:
            return ast.parse(code)
        finally:
            sys.set_int_max_str_digits(digits)
