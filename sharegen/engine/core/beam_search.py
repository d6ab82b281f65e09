"""Beam search: which texts are followed, and which come out, by transformers' rules.

Numbers alone: what the model says comes in, and which beam goes on with which token comes out.
Where their KV lies is the scheduler's business, what ends a text the collector's.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sharegen.engine.core.request import BeamSearchParams

End = TypeVar("End")
"""What ended a text, as whoever asks for it knows."""


@dataclass(frozen=True)
class Choice:
    """A beam that goes on: which one, with what token; logprob: of this token alone."""

    parent: int
    token: int
    logprob: float


@dataclass(frozen=True)
class Ended(Generic[End]):
    """A text that has ended with the token of a choice. logprob: of the whole text."""

    score: float
    logprob: float
    choice: Choice
    end: End


def num_candidates(beam_width: int, num_ends: int) -> int:
    """How many continuations are looked at: as many can end as there are tokens that end a text,
    and beam_width are to go on."""
    return max(2, 1 + num_ends) * beam_width


class BeamSearch(Generic[End]):
    """The beams of one request.

    limit: tokens of a text at most. logprobs: of the beams that run, the likeliest first; -inf
    where none of that many goes on, and nothing comes of it. ended: the best texts that have
    ended, at most beam_width, the best first. (`GenerationMixin._beam_search` of transformers.)
    """

    def __init__(self, params: BeamSearchParams, limit: int) -> None:
        self.params = params
        self.limit = limit
        self.length = 0
        self.logprobs = [0.0]
        self.ended: list[Ended[End]] = []

    def advance(
        self,
        told: Sequence[Sequence[tuple[int, float]]],
        num_ends: int,
        end_of: Callable[[Choice], End | None],
    ) -> list[Choice]:
        """Take the search one token further: which beams go on, the likeliest first; none where the
        search is over.

        told: of each beam the likeliest tokens and their log-probabilities, at least
        `num_candidates` of them or the whole vocabulary. num_ends: tokens that end a text.
        end_of: what a text that goes on so ends by, None where it does not.
        """
        width = self.params.beam_width
        self.length += 1
        candidates = sorted(
            (
                (self.logprobs[parent] + logprob, Choice(parent, token, logprob))
                for parent, of_beam in enumerate(told)
                for token, logprob in of_beam
            ),
            key=lambda candidate: -candidate[0],
        )[: num_candidates(width, num_ends)]
        ends = [end_of(choice) for _, choice in candidates]
        for (logprob, choice), end in list(zip(candidates, ends, strict=True))[:width]:
            if end is not None and logprob > -math.inf:
                self._end(Ended(self._score(logprob, self.length), logprob, choice, end))
        running = [c for c, end in zip(candidates, ends, strict=True) if end is None]
        if not running or self._is_over(best=running[0][0]):
            return []
        rest = [(-math.inf, c) for (_, c), e in zip(candidates, ends, strict=True) if e is not None]
        chosen = (running + rest)[:width]
        self.logprobs = [logprob for logprob, _ in chosen]
        return [choice for _, choice in chosen]

    def _end(self, text: Ended[End]) -> None:
        insort(self.ended, text, key=lambda ended: -ended.score)
        del self.ended[self.params.beam_width :]

    def _score(self, logprob: float, length: int) -> float:
        return logprob / length**self.params.length_penalty

    def _is_over(self, best: float) -> bool:
        """Return whether the search ends. best: the log-probability of the likeliest beam that
        runs.
        """
        if len(self.ended) < self.params.beam_width:
            return False
        # One beam is greedy decoding, as generate() has it: it ends with its first text.
        early = self.params.early_stopping if self.params.beam_width > 1 else True
        longest = early == "never" and self.params.length_penalty > 0
        reach = self._score(best, self.limit if longest else self.length)
        return early is True or reach <= self.ended[-1].score
