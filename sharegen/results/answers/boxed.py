r"""The last `\boxed{...}` of a text, braces balanced: how solutions of MATH end."""

from __future__ import annotations

import re

from sharegen.results.answers.own import read_own
from sharegen.results.answers.passage import Passage, Span
from sharegen.results.answers.reading import Reading

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*(?:\{|(?P<bare>[\w.,-]+))")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def read(passage: Passage) -> Reading | None:
    """What stands in the last box; None where no box is closed."""
    return read_own(passage, lambda part: last_box(part, part.whole))


def last_box(passage: Passage, span: Span) -> Reading | None:
    """The last closed box in a part of a passage; of nested boxes the outermost.

    One that the completion's end cuts off is the last, and there is no answer.
    """
    found = None
    after = span.start
    for match in _BOX.finditer(passage.raw, *span):
        if match.start() < after:
            continue
        if match["bare"] is not None:
            found, after = Reading(match["bare"], "box", *match.span("bare")), match.end()
            continue
        close = _closing(passage.raw, match.end(), span.end)
        if close is None:
            return None if passage.is_cut and span.end == len(passage.raw) else found
        after = close + 1
        inside = passage.raw[match.end() : close]
        if inside.strip():
            found = Reading(inside.strip(), "box", match.end(), close)
    return found


def _closing(text: str, start: int, end: int) -> int | None:
    """Where the brace that was opened before `start` is closed."""
    depth = 1
    for match in _BRACE.finditer(text, start, end):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None
