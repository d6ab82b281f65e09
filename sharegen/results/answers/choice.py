"""A letter: the answer of a multiple-choice question."""

from __future__ import annotations

from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.patterns import find
from sharegen.results.answers.reading import Reading

_PATTERNS = (r"(?i:answer|option|choice)(?: is|:)?\W*([A-Z])\b", r"\(([A-Z])\)", r"^\W*([A-Z])\b")


def read(text: str, is_cut: bool = False) -> Reading | None:
    """The letter that a completion chooses."""
    passage = Passage.of(text)
    found = find(passage.body, _PATTERNS)
    if found is None:
        return last_box(passage)
    start, end = found.start + passage.start, found.end + passage.start
    return Reading(found.answer, "marked answer", start, end)
