"""Where a completion marks its answer: after ####, after a label, after "the answer is".

A heading of level four is written with the mark of GSM8K's answers: it is a heading where it
numbers or names a step, or where its words are followed by more of the solution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sharegen.results.answers import wording
from sharegen.results.answers.passage import Passage

_AHEAD = 8  # lines after a mark in which its answer may stand
_LONGEST = 2_000  # characters of a line that are looked at
_MOST = 100  # marks of a kind, the last ones

_HASHES = re.compile(r"####(?<!#####)#{0,2}(?!#)[ \t]*")  # literals first: they are found fast
_LABEL = re.compile(
    r"(?m)^[ \t>#*_•|`(\[-]{0,20}(?:\d{1,2}[.)]\s)?(?:[^\w\s]\s?)?[*_]{0,3}"
    r"(?:so|thus|therefore|hence)?,?\s?"
    rf"(?:{wording.ANSWER}|A)(?:\s?\([^()\n]{{0,40}}\))?[*_`]{{0,4}}\s?(?:[:=][*_`]*|\s?-\s|$)",
    re.IGNORECASE,
)
_LABEL_WORDS = ("ans", "final", "antwo", "ergebnis", "respuesta", "resposta", "risposta", "svar",
                "cevap", "jawaban")  # fmt: skip
_LABEL_A = re.compile(r"(?m)a[*_`]{0,4}\s?(?:[:=(]|\s?-|$)")
_EMPTY = re.compile(r"[\s*_`$\\\[\](){}|>#=~:.-]*")


@dataclass(frozen=True)
class Mark:
    """A place that says: here is the answer.

    kind: `####`, `label` or `answer is`. at: where the mark stands. start, end: the line (or what
    is left of it) that should hold the answer.
    """

    kind: str
    at: int
    start: int
    end: int

    @property
    def rule(self) -> str:
        """What a reading by it is said to follow from."""
        return {"####": "after ####", "label": "after a label"}.get(
            self.kind, 'after "the answer is"'
        )


def marks(passage: Passage) -> list[Mark]:
    """The marks in a passage, in order; the content of each has something in it."""
    text = passage.text
    found: dict[int, Mark] = {}
    for kind, matches in (
        ("####", list(_HASHES.finditer(text)) if "####" in text else []),
        ("label", list(_labels(text))),
        ("answer is", _sayings(text)),
    ):
        for match in matches[-_MOST:]:
            mark = _marked(kind, text, match)
            if mark is not None:
                found.setdefault(mark.start, mark)
    return sorted(found.values(), key=lambda mark: (mark.start, mark.at))


def is_heading(text: str, mark: Mark) -> bool:
    """Whether #### begins a heading that numbers or names a step."""
    return mark.kind == "####" and wording.STEP.match(text, mark.start, mark.end) is not None


def _labels(text: str) -> Iterator[re.Match[str]]:
    """The labels, which begin lines: nowhere else, and in no text without their words."""
    if text.isascii() and not _has_label_words(text.lower()):
        return
    start = 0
    while start <= len(text):
        match = _LABEL.match(text, start)
        if match is not None:
            yield match
        start = _line_end(text, start if match is None else match.end() - 1) + 1


def _has_label_words(lower: str) -> bool:
    """Whether a text in ASCII may have a label: it takes far less time than to look for one."""
    return any(word in lower for word in _LABEL_WORDS) or _LABEL_A.search(lower) is not None


def _sayings(text: str) -> list[re.Match[str]]:
    """Where it is said what the answer is; the words that it takes are looked for first."""
    lower = text.lower()
    found: list[re.Match[str]] = []
    if "answer" in lower or "final result" in lower:
        found += (match for match in wording.SAYS.finditer(text) if _is_meant(match))
    if any(word in lower for word in wording.ANSWER_ELSEWHERE):
        found += wording.SAYS_ELSEWHERE.finditer(text)
    return found


def _is_meant(match: re.Match[str]) -> bool:
    """Whether "the answer is" speaks of the whole, and without an if."""
    return not (match["doubt"] or wording.PARTIAL.search(match["between"]))


def _marked(kind: str, text: str, match: re.Match[str]) -> Mark | None:
    """The mark with the rest of its line, or with the next line that holds anything."""
    start = match.end()
    for _ in range(_AHEAD):
        line_end = _line_end(text, start)
        end = min(line_end, start + _LONGEST)
        blank = _EMPTY.match(text, start, end)
        if blank is None or blank.end() < end:
            return Mark(kind, match.start(), start, end)
        start = line_end + 1
    return None


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end
