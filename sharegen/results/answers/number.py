"""A number: the answer of a word problem."""

from __future__ import annotations

from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.patterns import find
from sharegen.results.answers.reading import Reading

_PATTERNS = (
    r"####[^\n\d]*?([-−]?\s?[$€£]?\s?-?(?:\d[\d,]*)?\.?\d+(?:/\d+|:\d\d|\s\d+/\d+)?)",
    r"[Aa]nswer(?: is|:)?\s*\$?(-?[\d,]*\.?\d+)",
)


def read(text: str, is_cut: bool = False) -> Reading | None:
    """The number that a completion ends in."""
    passage = Passage.of(text)
    found = find(passage.body, _PATTERNS)
    if found is None:
        return last_box(passage)
    start, end = found.start + passage.start, found.end + passage.start
    if is_cut and end == len(text):
        return None
    return Reading(found.answer, "marked answer", start, end)
