"""What was read out of a text, by which rule, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reading:
    """An answer that was read.

    answer: as it is recorded. rule: which one found it, in a few words. start, end: where it stands
    in the text, in characters.
    """

    answer: str
    rule: str
    start: int
    end: int
