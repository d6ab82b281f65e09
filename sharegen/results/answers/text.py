"""A text: the answer of a question that is answered in a few words."""

from __future__ import annotations

from sharegen.results.answers.passage import Passage
from sharegen.results.answers.patterns import find
from sharegen.results.answers.reading import Reading


def read(text: str, is_cut: bool = False) -> Reading | None:
    """The line that a completion answers with."""
    passage = Passage.of(text)
    found = find(passage.body, (r"(?m)^.*\S.*$",), "first")
    if found is None:
        return None
    return Reading(found.answer, "line", found.start + passage.start, found.end + passage.start)
