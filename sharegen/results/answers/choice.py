"""A letter: the answer of a multiple-choice question."""

from __future__ import annotations

import re
from dataclasses import replace

from sharegen.results.answers import wording
from sharegen.results.answers.boxed import last_box
from sharegen.results.answers.marks import is_heading, marks
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.reading import Reading
from sharegen.results.answers.sentences import backwards

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
_OTHERS = re.compile(r"\s*(?:and|or|&|/|,(?:\s*(?:and|or))?)\s*[(\[*_]*[A-Z](?![\w'’])")
_SEVERAL = re.compile(r"(?<![\w'’])[A-Z]\s*(?:and|&|,)\s*[A-Z](?![\w'’])")
_NOT = re.compile(
    r"\b(?:not|isn't|incorrect|wrong|eliminate\w*|rule out|ruled out)\b", re.IGNORECASE
)
_WORDS = {"A", "I", "a", "i", "o", "s", "t", "u", "y"}  # letters that are words, or ends of some
_GOES_ON = re.compile(
    r"[*_\"'\s]*(?:$|[.,;:!)\]}\\$–—-]|because\b|since\b|as\b|for\b|is\b|with\b|\()"
)


def read(passage: Passage) -> Reading | None:
    """The letter that a completion chooses, as a capital."""
    box = last_box(passage, 0, len(passage.raw))
    for mark in reversed(marks(passage)):
        if box is not None and box.start >= mark.end:
            break
        if is_heading(passage.text, mark):
            continue
        found = _in_answer(passage, mark.start, mark.end)
        if found is not None:
            return None if found.answer == "" else replace(found, rule="after a mark")
    if box is not None and (found := _in_answer(passage, box.start, box.end)) is not None:
        return None if found.answer == "" else replace(found, rule="box")
    for place, sentence in enumerate(backwards(passage)):
        if sentence.is_aside and not _OPENS.match(sentence.text):
            continue
        if place < 2 and wording.REFUSES.search(sentence.text):
            return None
        found = _in_sentence(passage, sentence.start, sentence.end)
        if found is not None:
            return replace(found, rule="final sentence")
    return None


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
    if letter in _WORDS or letter.islower():
        return bool(_GOES_ON.match(rest)) and not (letter in "Ii" and rest.strip(" .*_"))
    return not rest.startswith(("-", "+", "=", "^"))


def _in_sentence(passage: Passage, start: int, end: int) -> Reading | None:
    text = passage.text
    for pattern in (_SAID, _IS_RIGHT):
        found = [m for m in pattern.finditer(text, start, end) if not _denied(text, m, start)]
        if found and _is_choice(text, found[-1], end):
            return _reading(found[-1])
    if _SEVERAL.search(text, start, end):
        return None
    opens = _OPENS.match(text, start, end)
    if (opens is not None and opens["letter"] != "I") and (
        opens["letter"].isupper() or text[start:end].strip(" ()*_.\n") == opens["letter"]
    ):
        return _reading(opens)
    for pattern in (_PARENTHESISED, _LONE):
        letters = {
            m["letter"].upper(): m
            for m in pattern.finditer(text, start, end)
            if not _denied(text, m, start)
        }
        if pattern is _LONE:
            letters = {
                k: m
                for k, m in letters.items()
                if k != "A" or _GOES_ON.match(text, m.end("letter"), end)
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
    return _NOT.search(text[max(start, match.start() - 20) : match.start("letter")]) is not None


def _reading(match: re.Match[str]) -> Reading:
    return Reading(match["letter"].upper(), "", *match.span("letter"))
