"""A text with facts planted in it, and what is asked of these: Hydragen's section 4.3 and E.3."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from sharegen.errors import DataError
from sharegen.workload.dataset import read_rows
from sharegen.workload.files.content import read_text
from sharegen.workload.needle import (
    Fact,
    in_paragraphs,
    made_facts,
    made_sentences,
    plant,
    words_of,
)

_FIELDS = ("fact", "question", "answer")


@dataclass(frozen=True)
class Size:
    """The size of a generated text. words: in all; facts: of ours that are asked for; examples: of
    others.
    """

    words: int
    facts: int
    examples: int


@dataclass(frozen=True)
class Haystack:
    """A text with facts. examples: facts that the prompt asks for and answers; asked: the
    others.
    """

    document: str
    examples: tuple[Fact, ...]
    asked: tuple[Fact, ...]

    def about(self, number: int) -> Fact:
        """What a question asks for; they begin again where there are more than facts."""
        return self.asked[number % len(self.asked)]

    def prompt(self, number: int) -> str:
        shown = "".join(f"Question: {e.question}\nAnswer: {e.answer}\n\n" for e in self.examples)
        return f"{self.document}\n\n{shown}Question: {self.about(number).question}\nAnswer:"


def haystack(size: Size, document: Path | None, facts: Path | None) -> Haystack:
    """The facts in a text, evenly spread; each of the two is made where there is no file.

    facts: rows with `fact`, `question` and `answer`, of which the first are the examples. Raises
    DataError for files that cannot be read, rows that lack a text, no more facts than examples, and
    a text with fewer words than its facts.
    """
    chance = random.Random("needles 0")
    if facts is None:
        planted = made_facts(size.examples, size.facts, chance)
    else:
        planted = _read_facts(facts, size.examples)
    needles = [fact.sentence for fact in planted]
    if document is None:
        sentences = made_sentences(size.words - words_of(needles), chance)
    else:
        sentences = re.split(r"(?<=[.!?])\s+", read_text(document).strip())
        if words_of(sentences) < words_of(needles):
            raise DataError(
                f"--document {document}: it has {words_of(sentences):,} words, fewer than the "
                f"{words_of(needles):,} of the {len(needles):,} facts: give a "
                "longer one, or fewer facts"
            )
    text = in_paragraphs(plant(sentences, needles, chance))
    return Haystack(text, tuple(planted[: size.examples]), tuple(planted[size.examples :]))


def is_right(fact: Fact, text: str) -> bool:
    """Whether the first line of a completion has the answer, as words of its own."""
    line = text.strip().partition("\n")[0]
    return re.search(rf"(?<!\w){re.escape(fact.answer)}(?!\w)", line, re.IGNORECASE) is not None


def _read_facts(path: Path, examples: int) -> list[Fact]:
    found = []
    for row in read_rows(str(path), None, "test").rows:
        texts = [row.values.get(field) for field in _FIELDS]
        if row.fault is not None or not all(isinstance(t, str) and t.strip() for t in texts):
            why = row.fault or f"it must have texts as {', '.join(_FIELDS)}"
            raise DataError(f"--facts {path}: {row.where}: {why}")
        found.append(Fact(*map(str, texts)))
    if len(found) <= examples:
        raise DataError(
            f"--facts {path}: it has {len(found)}, and the first {examples} are examples: give more"
        )
    return found
