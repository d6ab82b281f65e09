"""What a step drew becomes its sequences' next tokens, and completions of those that they end."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from sharegen.engine.cache.prompt_logprobs import note, of_prompt
from sharegen.engine.config import EngineStats
from sharegen.engine.core.request import NO_DISTRIBUTION, Completion, TokenLogprobs
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.loop.ending import Endings, OfSample
from sharegen.engine.loop.searching import Searching, Seen
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup
from sharegen.engine.schedule.step import DecodeStep, PrefillStep, Step


class Collector:
    """Reads drawn tokens in the order of the steps, and counts what comes of them."""

    def __init__(
        self,
        scheduler: Scheduler,
        stats: EngineStats,
        tokenizer: Any | None,
        eos_token_ids: Seq[int],
    ) -> None:
        self.scheduler = scheduler
        self.stats = stats
        self.tokenizer = tokenizer
        self.endings = Endings(tokenizer, eos_token_ids)
        self.searching = Searching(scheduler, self.endings)

    def collect(self, step: Step, drawn: Drawn) -> list[Completion]:
        """Add what a step drew to its sequences; returns those that it ended."""
        if isinstance(step, PrefillStep):
            return self._first(step, drawn)
        return self._next(step, drawn)

    def _first(self, step: PrefillStep, drawn: Drawn) -> list[Completion]:
        tokens, logprobs = drawn.get()
        if drawn.prompt is not None:
            note(step.asked, drawn.prompt.get()[1], drawn.prompt.get_top())
        sequences: list[Sequence] = []
        for group in step.groups:
            if group.unfinished:
                stored = self.scheduler.cache.stored
                group.prompt_logprobs = of_prompt(stored, group.leaf, group.request)
            part = slice(len(sequences), len(sequences) + len(group.drawn))
            sequences += self.scheduler.draw(group, tokens[part], logprobs[part])
        wanted = [(i, s) for i, s in enumerate(sequences) if not s.finished]
        searches = [(i, s) for i, s in wanted if s.group.search is not None]
        wanted = [(i, s) for i, s in wanted if s.group.search is None]
        good = [(i, s) for i, s in wanted if not math.isnan(logprobs[i])]
        failed = [s for i, s in wanted if math.isnan(logprobs[i])]
        for sequence in failed:
            sequence.set_outputs([], 0.0)
        self.stats.generated_tokens += len(good)
        if drawn.has_top:
            _note_top(good, drawn.get_top(), logprobs)
        ended = drawn.get_ended()
        finished = self._finish_some([(s, ended[i]) for i, s in good], failed)
        return finished + self._search(searches, drawn, logprobs)

    def _next(self, step: DecodeStep, drawn: Drawn) -> list[Completion]:
        """Every token of a job passes through here, so what most rows need is done in arrays."""
        tokens, logprobs, ended = drawn.arrays(len(step.index))
        rows = self.scheduler.rows
        rows.landed(step)
        outputs = rows.outputs
        taken, without = outputs.take(step.index, step.left, tokens, logprobs)
        grown = [(row, rows.at(row)) for row in taken.tolist()] if drawn.has_top else []
        ending = [(row, rows.at(row)) for row in outputs.may_have_ended(taken, tokens, ended)]
        failed = [(row, rows.at(row)) for row in without.tolist()]
        searches: list[tuple[int, Sequence]] = []
        count = len(taken)
        for row, sequence in rows.apart(step):
            # Steps launched before an end was seen, and replayed ones, draw nothing new.
            index = step.index[row]
            if sequence.finished or index != sequence.num_tokens:
                continue
            if sequence.group.search is not None:
                searches.append((row, sequence))
                continue
            if math.isnan(logprobs[row]):
                failed.append((row, sequence))
                continue
            sequence.add(int(tokens[row]), float(logprobs[row]))
            count += 1
            if drawn.has_top:
                grown.append((row, sequence))
            if ended[row] or index + 1 >= sequence.group.limit or self._may_stop(sequence):
                ending.append((row, sequence))
        self.stats.generated_tokens += count
        told = logprobs.tolist() if drawn.has_top else []
        if grown:
            _note_top(grown, drawn.get_top(), told)
        finished = self._finish_some(
            [(sequence, bool(ended[row])) for row, sequence in sorted(ending, key=_row)],
            [sequence for _, sequence in sorted(failed, key=_row)],
        )
        return finished + self._search(searches, drawn, told)

    def _may_stop(self, sequence: Sequence) -> bool:
        """Whether its newest token may complete a stop string."""
        stops = self.endings.stops_of(sequence.group)
        return stops is not None and stops.may_complete(sequence.token(-1))

    def _search(
        self, beams: list[tuple[int, Sequence]], drawn: Drawn, logprobs: list[float]
    ) -> list[Completion]:
        """The texts of beam searches that are over with what the rows of all their beams drew."""
        if not beams:
            return []
        top = drawn.get_top()
        seen = {
            id(beam): Seen(logprobs[place], list(zip(*top[place][1:], strict=True)))
            for place, beam in beams
        }
        finished: list[Completion] = []
        for group in {beam.group: None for _, beam in beams}:
            found = self.searching.advance(group, [seen[id(beam)] for beam in group.beams])
            self.stats.generated_tokens += len(group.beams)
            self._count(group, found)
            finished += found
        return finished

    def _finish_some(
        self, ending: list[tuple[Sequence, bool]], failed: list[Sequence]
    ) -> list[Completion]:
        """Completions of those that their newest token may have ended, with whether it is an end by
        itself; and of those that got none.
        """
        finished: list[Completion] = []
        for sequence, is_end in ending:
            finished += self._finish_ended(sequence, is_end)
        for sequence in failed:
            finished += self._finish(sequence, self._failure(sequence))
        return finished

    def _finish_ended(self, sequence: Sequence, is_end: bool) -> list[Completion]:
        """The completions of a sequence if its newest token has ended it; is_end: by itself."""
        group, tokens = sequence.group, sequence.tokens
        ending = self.endings.find(group, tokens, is_end, self._may_stop(sequence))
        if ending is None:
            return []
        drawn = OfSample(tokens, sequence.cumulative_logprob, sequence.logprobs)
        completion = self.endings.completion(group, sequence.sample, drawn, ending)
        return self._finish(sequence, completion)

    def _finish(self, sequence: Sequence, completion: Completion) -> list[Completion]:
        """The completion of every sample that the sequence was computed for."""
        samples = sequence.samples
        self.scheduler.finish(sequence)
        self.stats.copies += len(samples) - 1
        completions = [
            completion if sample == completion.sample else replace(completion, sample=sample)
            for sample in samples
        ]
        self._count(sequence.group, completions)
        return completions

    def _count(self, group: SequenceGroup, finished: Seq[Completion]) -> None:
        self.stats.completions += len(finished)
        self.stats.requests_done += bool(finished) and group.unfinished == 0

    def _failure(self, sequence: Sequence) -> Completion:
        """What becomes of a sample whose logits were no distribution, so that nothing was drawn."""
        return self.endings.failure(
            sequence.group, sequence.sample, _drawn(sequence), _reason(sequence)
        )


def _row(place: tuple[int, Sequence]) -> int:
    return place[0]


def _drawn(sequence: Sequence) -> OfSample:
    return OfSample(sequence.tokens, sequence.cumulative_logprob, sequence.logprobs)


def _reason(sequence: Sequence) -> str:
    """Why nothing was drawn, as far as it can be told."""
    count, params = sequence.num_tokens, sequence.group.request.params
    if sequence.matcher is not None and sequence.matcher.error is not None:
        return f"structured_outputs: {sequence.matcher.error} after {count:,} tokens"
    names = ("structured_outputs", "allowed_token_ids", "bad_words")
    barring = [name for name in names if getattr(params, name)]
    barring += ["logit_bias"] if -math.inf in (params.logit_bias or {}).values() else []
    or_barred = f", or there is no token that {' and '.join(barring)} leave" if barring else ""
    return f"{NO_DISTRIBUTION} after {count:,} tokens{or_barred}"


def _note_top(
    places: list[tuple[int, Sequence]],
    top: list[tuple[int, list[int], list[float]]],
    logprobs: list[float],
) -> None:
    """Write down the newest token's alternatives of the sequences that want them."""
    for place, sequence in places:
        wanted = sequence.group.request.params.logprobs
        if wanted is None:
            continue
        token_rank, ids, of_ids = top[place]
        best = dict(zip(ids[:wanted], of_ids[:wanted], strict=True))
        if sequence.logprobs is None:
            sequence.logprobs = []
        entry = TokenLogprobs(sequence.token(-1), logprobs[place], best, token_rank)
        sequence.logprobs.append(entry)
