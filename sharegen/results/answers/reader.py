"""Reads the answer out of a completion, or out of a dataset's own solution.

A recipe names the kind of answer that it asks for (`answer.extract`), or brings regular expressions
(`answer.patterns`). docs/reference/answers.md has the rules of each kind in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sharegen.common import confined
from sharegen.common.log import log
from sharegen.results.answers import boxed, choice, number, text
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.patterns import find, find_each
from sharegen.results.answers.reading import Reading

Extract: TypeAlias = Literal["number", "choice", "boxed", "text"]

_READERS: dict[str, Callable[[Passage], Reading | None]] = {
    "number": number.read,
    "choice": choice.read,
    "boxed": boxed.read,
    "text": text.read,
}
_SHORT = 1_000  # characters, which the bundled patterns read in a moment whatever they are


@dataclass(frozen=True)
class AnswerReader:
    """How answers are read.

    extract: the kind of answer; None where patterns alone say what an answer is.
    patterns: regular expressions, tried before it (patterns.py says how); match: which of a
        pattern's matches counts.
    trusted: whether the patterns are sharegen's own; others run in a process with limits.
    """

    extract: Extract | None = None
    patterns: tuple[str, ...] = ()
    match: Literal["first", "last"] = "last"
    trusted: bool = False

    def read(self, text: str, finish_reason: str | None = None) -> Reading | None:
        """The answer in a text; None where it has none, or where a pattern takes too long.

        finish_reason: of a completion. One that ended by "length" is cut off: what touches its end
        may have gone on, and is no answer.
        """
        return self._finish(text, finish_reason, self._by_patterns(text))

    def read_each(self, texts: Sequence[tuple[str, str | None]]) -> list[Reading | None]:
        """The answers in many texts, each with why it ended: patterns run over all in one call."""
        if not self.patterns or len(texts) < 2:
            return [self.read(*each) for each in texts]
        try:
            bare = [text for text, _ in texts]
            by_patterns = confined.call(find_each, bare, self.patterns, self.match)
        except confined.Exceeded:  # by one of them, or by all together
            return [self.read(*each) for each in texts]
        return [self._finish(*each, found) for each, found in zip(texts, by_patterns, strict=True)]

    def _finish(
        self, text: str, finish_reason: str | None, found: Reading | None
    ) -> Reading | None:
        is_cut = finish_reason == "length"
        if found is not None:
            return None if is_cut and found.end == len(text) else found
        if self.extract is None:
            return None
        passage = Passage.of(text, is_cut)
        found = _READERS[self.extract](passage)
        if found is None or passage.cuts(found.end):
            return None
        return found.moved(passage.offset) if passage.offset else found

    def _by_patterns(self, text: str) -> Reading | None:
        if not self.patterns or (self.trusted and len(text) <= _SHORT):
            return find(text, self.patterns, self.match)
        try:
            return confined.call(find, text, self.patterns, self.match)
        except confined.Exceeded as error:
            log(f"a pattern of the recipe's answer {error} on some samples: these have no answer")
            return None
