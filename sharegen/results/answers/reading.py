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

    def by(self, rule: str) -> Reading:
        """The same answer, found by this rule."""
        return Reading(self.answer, rule, self.start, self.end)

    def moved(self, offset: int) -> Reading:
        """The same answer in a text that has so many characters more in front."""
        return Reading(self.answer, self.rule, self.start + offset, self.end + offset)
