"""Sentences of a completion, from the last one backwards, and what kind each is of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sharegen.results.answers import wording
from sharegen.results.answers.passage import Passage, Span

_LONGEST = 2_000  # characters of a line; of a longer one the last are read
_MOST = 200  # sentences, the last ones

_END = re.compile(r"(?<=[.!?])[\"'*_)\]$]*\s+(?=[A-Z0-9$\\*\"'(\[-])|(?<=[。！？])")
_ABBREVIATED = re.compile(
    r"\b(?:approx|no|vs|mr|mrs|ms|dr|st|fig|eq|e\.g|i\.e|cf)\.$", re.IGNORECASE
)
_COUNTS = re.compile(r"[\s*_>(-]*\d{1,2}\.")  # of a list


@dataclass(frozen=True)
class Sentence:
    """A sentence of a passage. start, end: in the passage. text: in plain characters."""

    start: int
    end: int
    text: str

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    @property
    def concludes(self) -> bool:
        """Whether it says that it follows from what stands before."""
        return wording.CONCLUDES.match(self.text) is not None

    @property
    def states(self) -> bool:
        """Whether it says what something is."""
        return (
            self.concludes
            or wording.STATES.search(self.text) is not None
            or not re.search("[A-Za-z]{2}", self.text)
        )

    @property
    def is_aside(self) -> bool:
        """Whether it asks, thanks, offers, explains or checks."""
        bare = self.text.rstrip(" *_\"')\n")
        return (
            bare.endswith(("?", "？"))
            or wording.EXPLAINS.match(self.text) is not None
            or wording.POLITE.search(self.text) is not None
        )


def backwards(passage: Passage, start: int = 0, end: int | None = None) -> Iterator[Sentence]:
    """The sentences of a part of a passage that hold anything, the last one first."""
    text = passage.text
    stop = len(text) if end is None else end
    left = _MOST
    while stop > start and left:
        begin = max(text.rfind("\n", start, stop) + 1, start)
        for sentence in reversed(_of_line(text, max(begin, stop - _LONGEST), stop)):
            if left and sentence.text.strip(" \t#*_`$|-=~\\[]()>"):
                left -= 1
                yield sentence
        stop = begin - 1


def _begins_line(text: str, at: int) -> bool:
    return at == 0 or text[at - 1] == "\n"


def _of_line(text: str, start: int, end: int) -> list[Sentence]:
    found = []
    at = start
    for match in _END.finditer(text, start, end):
        piece = text[at : match.start()]
        if not (
            _ABBREVIATED.search(piece, max(0, len(piece) - 12))
            or (_COUNTS.fullmatch(piece) and _begins_line(text, at))
        ):
            found.append(Sentence(at, match.start(), piece))
            at = match.end()
    return [*found, Sentence(at, end, text[at:end])]
