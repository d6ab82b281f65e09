r"""The last `\boxed{...}` of a text, braces balanced: how solutions of MATH end."""

from __future__ import annotations

import re

from sharegen.results.answers.passage import Passage
from sharegen.results.answers.reading import Reading

_BOX = re.compile(r"\\(?:f?boxed|fbox)\s*\{|\\boxed\s+(?P<bare>[^\s{}$\\]+)")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def read(text: str, is_cut: bool = False) -> Reading | None:
    """What stands in the last box; None where no box is closed."""
    return last_box(Passage.of(text))


def last_box(passage: Passage) -> Reading | None:
    """The last box that is closed: of boxes in one another the outermost."""
    found = None
    end = 0
    for match in _BOX.finditer(passage.text, passage.start, passage.end):
        if match.start() < end:
            continue
        if match["bare"] is not None:
            found, end = Reading(match["bare"], "box", *match.span("bare")), match.end()
            continue
        close = _closing(passage, match.end())
        if close is None:
            break
        end = close + 1
        if inside := passage.text[match.end() : close].strip():
            found = Reading(inside, "box", match.end(), close)
    return found


def _closing(passage: Passage, start: int) -> int | None:
    """Where the brace that was opened before `start` is closed."""
    depth = 1
    for match in _BRACE.finditer(passage.text, start, passage.end):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.start()
    return None
