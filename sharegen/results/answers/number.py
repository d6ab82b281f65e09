"""A number: how the answer of a word problem is read; in words in docs/reference/answers.md.

1. The last marked answer (marks.py) or box; what takes it back ("wait, ...") is read instead.
2. The final sentence that holds a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from sharegen.results.answers import numerals, wording
from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.clause import number_in
from sharegen.results.answers.head import content_of
from sharegen.results.answers.marks import Mark, is_heading, marks
from sharegen.results.answers.own import read_own
from sharegen.results.answers.passage import Passage, Span
from sharegen.results.answers.reading import Reading
from sharegen.results.answers.sentences import Sentence, backwards

_AHEAD = 2  # sentences at the end in which a refusal counts


@dataclass(frozen=True)
class _Verdict:
    """What a mark comes to: a reading, or None where it says that there is no answer."""

    reading: Reading | None


def read(passage: Passage) -> Reading | None:
    """The number that a completion answers with."""
    return read_own(passage, _read)


def _read(passage: Passage) -> Reading | None:
    verdict = _last_mark(passage)
    if verdict is not None:
        found = verdict.reading
        if found is None:
            return None
        after = _after(passage, found)
        return found if after is None else after
    return _final_sentence(passage)


def _last_mark(passage: Passage) -> _Verdict | None:
    box = last_box(passage, passage.whole)
    for mark in reversed(marks(passage)):
        if box is not None and box.start >= mark.end:
            break
        verdict = _verdict(passage, mark)
        if verdict is not None:
            return _uncut(passage, verdict)
    if box is None:
        return None
    found = content_of(passage, Span(box.start, box.end))
    return None if found is None else _Verdict(found.by("box"))


def _verdict(passage: Passage, mark: Mark) -> _Verdict | None:
    """What a mark comes to; None where it marks no answer."""
    text = passage.text
    if is_heading(text, mark):
        return None
    first, is_whole = _first_sentence(passage, mark)
    content = text[first.start : first.end]
    if wording.NOTHING.match(content) or _refuses(content):
        return _Verdict(None)
    is_question = mark.kind != "label" and content.rstrip(" *_").endswith("?")
    if is_question or wording.WRONG.search(content) or wording.NOT.match(content):
        return None
    found = number_in(passage, first.span, leads=True)
    if found is None:
        return None
    named = _Verdict(found.by(mark.rule))
    is_head = not re.search(r"[A-Za-z]{2}", text[first.start : found.start].replace("text", ""))
    if mark.kind == "####":
        words = len(re.findall(r"[A-Za-z]{2,}", text[found.end : first.end]))
        if (not is_head or words > 4) and _goes_on(passage, mark.end):
            return None
    elif mark.kind == "label" and not is_head and not is_whole:
        return None
    return named


def _refuses(content: str) -> bool:
    """Whether an answer says that there is none, before any number and without a but."""
    refusal = wording.REFUSES.search(content)
    if refusal is None or re.search(r"\d", content[: refusal.start()]):
        return False
    return re.search(r"\bbut\b.*\d", content[refusal.end() :]) is None


def _first_sentence(passage: Passage, mark: Mark) -> tuple[Sentence, bool]:
    """The first sentence of a mark's line, and whether there is no other."""
    sentences = list(backwards(passage, mark.start, mark.end))
    if not sentences:
        return Sentence(mark.start, mark.end, passage.text[mark.start : mark.end]), True
    return sentences[-1], len(sentences) == 1


def _goes_on(passage: Passage, start: int) -> bool:
    """Whether more numbers follow."""
    return any(True for _ in numerals.numerals(passage.text, start, len(passage.text)))


def _uncut(passage: Passage, verdict: _Verdict) -> _Verdict:
    """Return no answer where the completion's end may have cut the number off."""
    found = verdict.reading
    return _Verdict(None) if found is not None and passage.cuts(found.end) else verdict


def _after(passage: Passage, found: Reading) -> Reading | None:
    """What a later sentence says instead: it takes the answer back, or concludes from a box."""
    back = wording.taken_back(passage.text, found.end)
    if back is None and found.rule != "box":
        return None
    start = found.end if back is None else back.start()
    for sentence in backwards(passage, start):
        if sentence.is_aside:
            continue
        is_said = sentence.concludes if back is None else sentence.states
        if not is_said:
            return None
        later = number_in(passage, sentence.span, leads=False)
        if later is None or passage.cuts(later.end):
            return None
        return later.by("final sentence")
    return None


def _final_sentence(passage: Passage) -> Reading | None:
    """The last sentence that holds a number and is no question, courtesy, reason or check."""
    in_words = None
    for place, sentence in enumerate(_substance(passage)):
        refusal = wording.REFUSES.search(sentence.text) if place < _AHEAD else None
        if refusal is not None and not re.search(r"\bbut\b.*\d", sentence.text[refusal.end() :]):
            return None
        found = number_in(passage, sentence.span, leads=False)
        if found is None:
            continue
        if passage.is_cut and (not sentence.concludes or passage.cuts(found.end)):
            return None
        if re.search(r"\d", passage.text[found.start : found.end]) or sentence.concludes:
            return found.by("final sentence")
        in_words = in_words or found.by("final sentence")
    return in_words


def _substance(passage: Passage) -> Iterator[Sentence]:
    for sentence in backwards(passage):
        if not (sentence.is_aside or wording.MERE_LABEL.match(sentence.text)):
            yield sentence
