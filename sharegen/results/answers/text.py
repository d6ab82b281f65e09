"""A text: the answer of a question that is answered in a few words."""

from __future__ import annotations

from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.marks import is_heading, marks
from sharegen.results.answers.own import read_own
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.reading import Reading
from sharegen.results.answers.sentences import backwards

_AROUND = " \t\r\n*_`"


def read(passage: Passage) -> Reading | None:
    """What the last mark or box holds; else the last line, courtesies left out."""
    return read_own(passage, _read)


def _read(passage: Passage) -> Reading | None:
    box = last_box(passage, passage.whole)
    for mark in reversed(marks(passage)):
        if box is not None and box.start >= mark.start:
            return box
        if not is_heading(passage.text, mark):
            return _stripped(passage, mark.start, mark.end, mark.rule)
    if box is not None:
        return box
    for sentence in backwards(passage):
        if not sentence.is_aside:
            end = passage.raw.find("\n", sentence.start)
            start = passage.raw.rfind("\n", 0, sentence.start) + 1
            return _stripped(passage, start, len(passage.raw) if end < 0 else end, "last line")
    return None


def _stripped(passage: Passage, start: int, end: int, rule: str) -> Reading | None:
    raw = passage.raw[start:end]
    inside = raw.strip(_AROUND)
    begin = start + len(raw) - len(raw.lstrip(_AROUND))
    return Reading(inside, rule, begin, begin + len(inside)) if inside else None
