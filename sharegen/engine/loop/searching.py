"""A beam search, step by step: what the rows' likeliest tokens make of its beams."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from sharegen.engine.core.beam_search import BeamSearch, Choice, Ended
from sharegen.engine.core.request import NO_DISTRIBUTION, Completion, TokenLogprobs
from sharegen.engine.loop.ending import Ending, Endings, OfSample
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup


@dataclass(frozen=True)
class Seen:
    """What a row said of its next token. logprob: of the one that it drew, NaN where the logits are
    no distribution; likeliest: tokens and their log-probabilities, best first."""

    logprob: float
    likeliest: list[tuple[int, float]]


@dataclass(frozen=True)
class _Text:
    """A text that has ended. tokens, logprobs: all of them."""

    tokens: list[int]
    logprobs: list[TokenLogprobs] | None
    ending: Ending


class Searching:
    """Takes beam searches further, in the rows of one scheduler."""

    def __init__(self, scheduler: Scheduler, endings: Endings) -> None:
        self.scheduler = scheduler
        self.endings = endings

    def advance(self, group: SequenceGroup, seen: Seq[Seen]) -> list[Completion]:
        """All rows of a search have said what may come next; its texts, once it is over.

        seen: of each of the group's beams.
        """
        search, beams = group.search, group.beams
        assert search is not None
        if any(math.isnan(beam.logprob) for beam in seen):
            return self._fail(group)
        ends = frozenset(self.endings.tokens_of(group))
        told = [beam.likeliest for beam in seen]
        stops = self.endings.stops_of(group)

        def end_of(choice: Choice) -> _Text | None:
            text = [*beams[choice.parent].tokens, choice.token]
            is_end = choice.token in ends
            may_stop = stops is not None and stops.may_complete(choice.token)
            ending = self.endings.find(group, text, is_end, may_stop)
            if ending is None:
                return None
            return _Text(text, _noted(beams[choice.parent], choice, seen), ending)

        choices = search.advance(told, len(ends), end_of)
        if not choices:
            return self._finish(group, search)
        noted = [_noted(beams[choice.parent], choice, seen) for choice in choices]
        self.scheduler.go_on(group, choices)
        for beam, logprobs in zip(group.beams, noted, strict=True):
            beam.logprobs = logprobs
        return []

    def _finish(self, group: SequenceGroup, search: BeamSearch[_Text]) -> list[Completion]:
        found = [
            self._completion(group, beam_rank, text) for beam_rank, text in enumerate(search.ended)
        ]
        missing = range(len(found), search.params.beam_width)
        if missing:
            why = f"no more than {len(found)} texts can be told apart: follow fewer beams"
            found += [self._failure(group, beam_rank, why) for beam_rank in missing]
        return self._end(group, found)

    def _fail(self, group: SequenceGroup) -> list[Completion]:
        count = group.beams[0].num_tokens
        why = f"{NO_DISTRIBUTION} after {count:,} tokens"
        beam_ranks = range(group.request.rows)
        return self._end(group, [self._failure(group, beam_rank, why) for beam_rank in beam_ranks])

    def _end(self, group: SequenceGroup, found: Seq[Completion]) -> list[Completion]:
        """Return the beams that are wanted, by beam rank."""
        wanted = group.samples_of(group.drawn[0])
        self.scheduler.finish(group.alive[group.drawn[0]])
        return [found[beam_rank] for beam_rank in wanted]

    def _completion(self, group: SequenceGroup, beam_rank: int, text: Ended[_Text]) -> Completion:
        drawn = OfSample(text.end.tokens, text.logprob, text.end.logprobs, text.score)
        return self.endings.completion(group, beam_rank, drawn, text.end.ending)

    def _failure(self, group: SequenceGroup, beam_rank: int, why: str) -> Completion:
        return self.endings.failure(group, beam_rank, OfSample([], 0.0, None), why)


def _noted(beam: Sequence, choice: Choice, seen: Seq[Seen]) -> list[TokenLogprobs] | None:
    """A beam's log-probabilities with those of the token that it goes on with, where wanted."""
    wanted = beam.group.request.params.logprobs
    if wanted is None:
        return None
    likeliest = seen[choice.parent].likeliest
    token_rank = 1 + likeliest.index((choice.token, choice.logprob))
    entry = TokenLogprobs(choice.token, choice.logprob, dict(likeliest[:wanted]), token_rank)
    return [*(beam.logprobs or []), entry]
