"""JSON from outside as plain values, within bounds that whatever handles them can bear.

Python parses what its own encoder, `repr`, pickle and any recursion then fail on, and how deep
that is differs between its versions. So the depth is bounded here, once, and nothing after it has
to ask.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

MAX_DEPTH = 200
"""Levels of lists and objects in one another."""


class JsonError(ValueError):
    """A text that is not JSON: why, in a few words, and in which line of it."""

    def __init__(self, reason: str, line: int = 1):
        super().__init__(reason)
        self.line = line


class JsonLimitError(JsonError):
    """A text that is JSON, but too deep or with too long a number."""


def parse(
    text: str | bytes,
    *,
    parse_int: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """The value of a JSON text, bytes being UTF-8. Raises JsonError.

    parse_int, parse_float: what makes a value of a number, as for `json.loads`.
    """
    try:
        whole = text if isinstance(text, str) else text.decode()
        value = json.loads(whole, parse_int=parse_int, parse_float=parse_float)
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 text at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.lineno) from None
    except RecursionError:
        raise JsonLimitError(_TOO_DEEP) from None
    except JsonError:  # of what makes the numbers
        raise
    except ValueError:  # Python's own limit
        raise JsonLimitError("a number has too many digits") from None
    if whole.count("[") + whole.count("{") > MAX_DEPTH and _is_deep(value):
        raise JsonLimitError(_TOO_DEEP)
    return value


_TOO_DEEP = f"nested too deeply, more than {MAX_DEPTH} levels"


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, list | dict)
        ]
        if not level:
            return False
    return True


def is_nan(value: Any) -> bool:
    """Whether a value is the NaN that tables write for a missing one, and some write as JSON."""
    return isinstance(value, float) and math.isnan(value)


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)


def elements(text: str) -> Iterator[str]:
    """The texts of a JSON list's elements, split without parsing them."""
    depth = start = 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("[", "{"):
            depth += 1
            start = token.end() if depth == 1 else start
        elif token[0] in ("]", "}"):
            depth -= 1
        if depth == 0 or (depth == 1 and token[0] == ","):
            yield text[start : token.start()]
            start = token.end()
