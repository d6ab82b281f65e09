"""The own part of a completion: a base model goes on with questions like its examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from sharegen.results.answers import wording
from sharegen.results.answers.passage import Passage
from sharegen.results.answers.reading import Reading

_MOST = 20  # questions before which an answer is looked for


def read_own(passage: Passage, read: Callable[[Passage], Reading | None]) -> Reading | None:
    """What is read before the next question, if an answer stands there; else in all of it."""
    for match in islice(wording.NEXT_QUESTION.finditer(passage.text), _MOST):
        if passage.raw[: match.start()].strip():
            own = read(replace(passage.until(match.start()), is_cut=False))
            if own is not None:
                return own
    return read(passage)
