"""A letter: the answer of a multiple-choice question."""

from __future__ import annotations

import re
from functools import cache, partial

from sharegen.results.answers import wording
from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.marks import is_heading, marks
from sharegen.results.answers.own import read_own
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.reading import Reading
from sharegen.results.answers.sentences import Sentence, backwards

_AROUND = r"[\s*_:$\"'`\\{~-]*"
_HEAD = re.compile(
    rf"(?:{_AROUND}(?:(?:the\s+)?(?:correct\s+|best\s+)?(?:option|choice|answer|letter)"
    r"|\\?(?:text|mathrm|mathbf|textbf)|likely|probably|definitely|clearly|therefore|either)\b)*"
    rf"{_AROUND}(?P<open>[(\[])?\s*[*_]*(?P<letter>[A-Za-z])(?![\w'’])[*_]*"
    r"(?P<close>\s*[)\]])?(?P<rest>[^\n]*)",
)
_SAID = re.compile(
    r"\b(?:(?:option|choice|letter|select|choose|pick|chose|selected|answer(?:ing)?|go with)s?)\b"
    r"(?:\s+(?:is|as|would be|should be|the|option|choice|letter|answer))*"
    r"[\s*_:\"'`]*[(\[]?[*_]*(?P<letter>[A-Z])(?![\w'’])"
)
_IS_RIGHT = re.compile(
    r"(?<![\w'’(])[(\[]?(?P<letter>[A-Z])(?![\w'’])[)\].]?[*_]*\s+"
    r"(?:is|must be|would be|seems)\s+(?:the\s+)?(?:correct|right|best|true|answer|most)\b"
)
_PARENTHESISED = re.compile(r"[(\[](?P<letter>[A-Za-z])[)\]]")
_LONE = re.compile(r"(?<![\w'’])(?P<letter>[A-HJ-Z])(?![\w'’])")
_OPENS = re.compile(r"[\s*_\"'(\[]*(?P<letter>[A-Za-z])(?:[*_]*[.):\]][*_\s]|[*_\"'.)\]\s]*$)")
_OTHERS = re.compile(r"\s*(?:and|or|[&/+]|,(?:\s*(?:and|or))?)\s*[(\[*_]*[A-Z](?![\w'’])")
_SAID_SMALL = re.compile(
    r"\b(?:option|choice|letter)\s+[(\[]?(?P<letter>[a-z])[)\]]?(?=[.,;]|\s*$)"
)
_IS_WRONG = re.compile(
    r"[)\].*_]*\s+(?:is|are|was|seems|would be|can't be|cannot be)\s+(?:\w+\s+)?"
    r"(?:wrong|incorrect|not|false|too|impossible|eliminated|ruled out)\b"
)
_LINE = re.compile(r"[^\n]+")
_CAPITALS = "ABCDEFGHJKLMNOPQRSTUVWXYZ"  # I is who speaks, where nothing says that it is a letter
_NEAR = 20  # characters before a letter in which it may be denied
_AHEAD = 2  # sentences at the end in which a refusal counts
_SEVERAL = re.compile(r"(?<![\w'’])[A-Z]\s*(?:and|or|[&,/+])\s*[A-Z](?![\w'’])")
_NOT = re.compile(
    r"\b(?:not|isn't|incorrect|wrong|eliminat\w+|rule out|ruled out)\b", re.IGNORECASE
)
_NOT_BEFORE = re.compile(
    r"\b(?:neither|nor|never|can(?:no|')t|can not|(?:do|does|did|would|could|should)(?:n't| not))"
    r"\b(?!\s+know)[^,;:]*$",
    re.IGNORECASE,
)
_FAR = 40  # characters before a letter in which such a word denies it, within a part of a sentence
_WORDS = {"A", "I", "a", "i", "o", "s", "t", "u", "y"}  # letters that are words, or ends of some
_GOES_ON = re.compile(
    r"[*_\"'\s]*(?:$|[.,;:!)\]}\\$–—-]|because\b|since\b|as\b|for\b|is\b|with\b|not\b|over\b|rather\b|instead\b|\()"
)


def read(passage: Passage) -> Reading | None:
    """The letter that a completion chooses, as a capital."""
    return read_own(passage, _read)


def _read(passage: Passage) -> Reading | None:
    found = _marked(passage)
    if found is not None:
        later = None if found.answer == "" else _instead(passage, found)
        return later or (found if found.answer else None)
    opening = cache(partial(_opening, passage))  # of all sentences alike, and many ask
    for place, sentence in enumerate(backwards(passage)):
        if sentence.is_aside and not _OPENS.match(sentence.text):
            continue
        if place < _AHEAD and wording.REFUSES.search(sentence.text):
            return None
        found = (
            _taken_back(passage, sentence)
            or _said(passage, sentence.start, sentence.end)
            or opening()
            or _in_sentence(passage, sentence.start, sentence.end)
        )
        if found is not None:
            return found.by("final sentence" if found.start >= sentence.start else "head")
    return None


def _marked(passage: Passage) -> Reading | None:
    """The letter of the last mark or box that has one; "" for several."""
    box = last_box(passage, passage.whole)
    for mark in reversed(marks(passage)):
        if box is not None and box.start >= mark.end:
            break
        if not is_heading(passage.text, mark):
            found = _in_answer(passage, mark.start, mark.end)
            if found is not None:
                return found.by(mark.rule)
    found = None if box is None else _in_answer(passage, box.start, box.end)
    return None if found is None else found.by("box")


def _instead(passage: Passage, found: Reading) -> Reading | None:
    """The letter of a later sentence that takes the marked one back."""
    back = wording.taken_back(passage.text, found.end)
    for sentence in backwards(passage, back.start()) if back is not None else ():
        later = _said(passage, sentence.start, sentence.end)
        later = later or _in_sentence(passage, sentence.start, sentence.end)
        if later is not None and not sentence.is_aside:
            return later.by("final sentence")
    return None


def _taken_back(passage: Passage, sentence: Sentence) -> Reading | None:
    """The letter behind a "wait, ..." or "actually, ..." of a sentence."""
    back = wording.taken_back(sentence.text)
    if back is None:
        return None
    return _in_sentence(passage, sentence.start + back.end(), sentence.end)


def _opening(passage: Passage) -> Reading | None:
    """The letter that a completion begins with, unless it goes on with other options."""
    lines = [match for line in _LINE.finditer(passage.text) if (match := _opens(passage, line))]
    if not lines or passage.text[: lines[0].start("letter")].strip(" \n*_(["):
        return None
    return _reading(lines[0]) if len({line["letter"] for line in lines}) == 1 else None


def _opens(passage: Passage, line: re.Match[str]) -> re.Match[str] | None:
    match = _OPENS.match(passage.text, *line.span())
    if match is None or match["letter"].upper() not in _CAPITALS:
        return None
    return None if _denied(passage.text, match, line.start()) else match


def _in_answer(passage: Passage, start: int, end: int) -> Reading | None:
    """The letter that what follows a mark begins with or says; "" for several of them."""
    text = passage.text
    match = _HEAD.match(text, start, end)
    if match is not None and match["letter"].isupper() and _OTHERS.match(match["rest"]):
        return Reading("", "", *match.span("letter"))
    if match is not None and _is_letter(match):
        return _reading(match)
    return _in_sentence(passage, start, end)


def _is_letter(match: re.Match[str]) -> bool:
    """Whether a letter at the head of an answer is one, and no word."""
    letter, rest = match["letter"], match["rest"]
    if match["open"] or match["close"]:
        return letter not in ("I", "i") or bool(match["open"])
    if letter == "I" and rest.strip(" .*_"):
        return rest.startswith((".", ")", ":"))
    if letter in _WORDS or letter.islower():
        return _GOES_ON.match(rest) is not None
    return not rest.startswith(("-", "+", "=", "^"))


def _said(passage: Passage, start: int, end: int) -> Reading | None:
    """The letter that a sentence calls an option, or right."""
    text = passage.text
    for pattern in (_SAID, _SAID_SMALL, _IS_RIGHT):
        found = [m for m in pattern.finditer(text, start, end) if not _denied(text, m, start)]
        if found and _is_choice(text, found[-1], end):
            return _reading(found[-1])
    return None


def _in_sentence(passage: Passage, start: int, end: int) -> Reading | None:
    """The letter of a sentence that names one option alone."""
    text = passage.text
    said = _said(passage, start, end)
    if said is not None:
        return said
    several = _SEVERAL.search(text, start, end)
    if several is not None and not _NOT.search(
        text, max(start, several.start() - _NEAR), several.start()
    ):
        return None
    opens = _OPENS.match(text, start, end)
    if opens is not None and opens["letter"] not in "Ii" and not _denied(text, opens, start):
        is_alone = text[start:end].strip(" ()*_.\n") == opens["letter"]
        if opens["letter"].isupper() or is_alone:
            return _reading(opens)
    for pattern in (_PARENTHESISED, _LONE):
        letters = {
            match["letter"].upper(): match
            for match in pattern.finditer(text, start, end)
            if not _denied(text, match, start)
            and (pattern is _PARENTHESISED or _is_choice(text, match, end))
        }
        if len(letters) == 1:
            return _reading(next(iter(letters.values())))
    return None


def _is_choice(text: str, match: re.Match[str], end: int) -> bool:
    """Whether a capital is a choice: an article is not, nor is who speaks."""
    if match["letter"] == "A":
        return _GOES_ON.match(text, match.end("letter"), end) is not None
    return match["letter"] != "I"


def _denied(text: str, match: re.Match[str], start: int) -> bool:
    near = max(start, match.start() - _NEAR)
    before = text[max(start, match.start("letter") - _FAR) : match.start("letter")]
    return (
        _NOT.search(text, near, match.start("letter")) is not None
        or _NOT_BEFORE.search(before) is not None
        or _IS_WRONG.match(text, match.end("letter")) is not None
    )


def _reading(match: re.Match[str]) -> Reading:
    return Reading(match["letter"].upper(), "", *match.span("letter"))
