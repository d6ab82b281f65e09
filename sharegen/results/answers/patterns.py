"""Answers found by regular expressions of one's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from sharegen.errors import UsageError
from sharegen.results.answers.reading import Reading


def find(
    text: str, patterns: Sequence[str], which: Literal["first", "last"] = "last"
) -> Reading | None:
    """The answer in a text, as it stands there; None where no pattern finds one.

    patterns: regular expressions in order of preference; the first that finds anything decides.
        A group in a pattern captures the answer, else the whole match is the answer; of several
        groups it is the first that took part.
    which: of several matches of one pattern, the first or the last one counts.

    Raises UsageError for a pattern that is not a regular expression.
    """
    for pattern in patterns:
        try:
            matches = re.finditer(pattern, text)
        except re.error as error:
            raise UsageError(f"answer pattern {pattern!r}: {error}") from error
        found = None
        for match in matches:
            taken = [n for n in range(1, len(match.groups()) + 1) if match[n] is not None]
            group = taken[0] if taken else 0
            if answer := match[group].strip():
                found = Reading(answer, f"pattern {pattern}", *match.span(group))
            if found and which == "first":
                break
        if found:
            return found
    return None


def find_each(
    texts: Sequence[str], patterns: Sequence[str], which: Literal["first", "last"] = "last"
) -> list[Reading | None]:
    """Do what `find` does in each text."""
    return [find(text, patterns, which) for text in texts]
