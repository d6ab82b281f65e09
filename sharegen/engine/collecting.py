"""What a step drew becomes its sequences' next tokens, and completions of those that they end."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import numpy as np

from sharegen.engine.cache.prompt_logprobs import note, of_prompt
from sharegen.engine.config import EngineStats
from sharegen.engine.execute.drawn import Drawn
from sharegen.engine.request import Completion, FinishReason, SamplingParams, TokenLogprobs
from sharegen.engine.schedule.scheduler import Scheduler
from sharegen.engine.schedule.sequence import Sequence
from sharegen.engine.schedule.step import DecodeStep, PrefillStep, Step
from sharegen.engine.text.detokenize import completion_text
from sharegen.engine.text.stopping import Stops, end_tokens


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
        self.eos_token_ids = eos_token_ids

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
        good = [(i, s) for i, s in wanted if not math.isnan(logprobs[i])]
        failed = [s for i, s in wanted if math.isnan(logprobs[i])]
        for sequence in failed:
            sequence.tokens, sequence.cumulative_logprob = [], 0.0
        return self._grown(good, failed, drawn, logprobs)

    def _next(self, step: DecodeStep, drawn: Drawn) -> list[Completion]:
        tokens, logprobs = drawn.get()
        grown: list[tuple[int, Sequence]] = []
        failed: list[Sequence] = []
        for row, sequence in enumerate(step.sequences):
            # Steps launched before an end was seen, and replayed ones, draw nothing new.
            if sequence is None or sequence.finished or step.index[row] != len(sequence.tokens):
                continue
            if math.isnan(logprobs[row]):
                failed.append(sequence)
                continue
            sequence.tokens.append(tokens[row])
            sequence.cumulative_logprob += logprobs[row]
            grown.append((row, sequence))
        return self._grown(grown, failed, drawn, logprobs)

    def _grown(
        self,
        grown: list[tuple[int, Sequence]],
        failed: list[Sequence],
        drawn: Drawn,
        logprobs: list[float],
    ) -> list[Completion]:
        """Completions among sequences that have a new token, by place, and those that got none."""
        if drawn.has_top:
            _note_top(grown, drawn.get_top(), logprobs)
        self.stats.generated_tokens += len(grown)
        finished = self._finish_ended(grown, drawn.get_ended())
        for sequence in failed:
            finished += self._finish(sequence, _failure(sequence, self.tokenizer is not None))
        return finished

    def _finish_ended(
        self, grown: list[tuple[int, Sequence]], ended: list[bool]
    ) -> list[Completion]:
        """Completions of those whose newest token ended them; ended: by place, as the device saw.

        Few of the sequences of a step end, so it is asked at once which ones may.
        """
        last = np.array([sequence.tokens[-1] for _, sequence in grown], dtype=np.int64)
        suspects: dict[Stops, list[bool]] = {}
        finished: list[Completion] = []
        for i, (place, sequence) in enumerate(grown):
            stops = self._stops(sequence.group.request.params)
            if stops is not None and stops not in suspects:
                suspects[stops] = stops.may_complete(last).tolist()
            may_stop = stops is not None and suspects[stops][i]
            full = len(sequence.tokens) >= sequence.group.limit
            if not (ended[place] or may_stop or full):
                continue
            completion = self._ended(sequence, ended[place], may_stop)
            if completion is not None:
                finished += self._finish(sequence, completion)
        return finished

    def _stops(self, params: SamplingParams) -> Stops | None:
        """What ends a sample with these parameters in its text, if something does."""
        if not params.stop:
            return None
        return Stops.of(self.tokenizer, params.stop, not params.skip_special_tokens)

    def _finish(self, sequence: Sequence, completion: Completion) -> list[Completion]:
        """The completion of every sample that the sequence was computed for."""
        samples = sequence.samples
        self.scheduler.finish(sequence)
        self.stats.completions += len(samples)
        self.stats.copies += len(samples) - 1
        self.stats.requests_done += sequence.group.unfinished == 0
        return [replace(completion, sample=sample) for sample in samples]

    def _ended(self, sequence: Sequence, is_end: bool, may_stop: bool) -> Completion | None:
        """Its completion if it has ended. is_end: whether its newest token alone says so."""
        group, params = sequence.group, sequence.group.request.params
        text: str | None = None
        reason: FinishReason
        stop_reason: str | int | None = None
        include = params.include_stop_str_in_output
        if is_end:
            ends = end_tokens(params, self.tokenizer, self.eos_token_ids)
            reason, stop_reason = ends[sequence.tokens[-1]]
        else:
            match = None
            stops = self._stops(params) if may_stop else None
            if stops is not None:
                match = stops.match(
                    group.request.prompt_token_ids,
                    sequence.tokens,
                    min_tokens=params.min_tokens,
                    include_stop=include,
                )
            if match is not None:
                reason, stop_reason, text = "stop", match.stop, match.text
            elif len(sequence.tokens) >= group.limit:
                reason = group.limit_reason
            else:
                return None
        if text is None and self.tokenizer is not None and params.detokenize:
            hide = is_end and not include
            shown = sequence.tokens[:-1] if hide else sequence.tokens
            special = not params.skip_special_tokens
            text = completion_text(self.tokenizer, group.request.prompt_token_ids, shown, special)
            if include and isinstance(stop_reason, str) and not special:
                text += stop_reason  # a special token, which decoding left out
        return Completion(
            request=group.request,
            sample=sequence.sample,
            token_ids=sequence.tokens,
            text=text,
            finish_reason=reason,
            stop_reason=stop_reason,
            cumulative_logprob=sequence.cumulative_logprob,
            logprobs=sequence.logprobs,
            prompt_logprobs=group.prompt_logprobs,
            num_cached_tokens=group.num_cached or 0,
        )


def _failure(sequence: Sequence, has_text: bool) -> Completion:
    """What becomes of a sample whose logits were no distribution, so that nothing was drawn.

    has_text: whether samples have one, where their parameters want it.
    """
    count, params = len(sequence.tokens), sequence.group.request.params
    barring = [name for name in ("allowed_token_ids", "bad_words") if getattr(params, name)]
    barring += ["logit_bias"] if -math.inf in (params.logit_bias or {}).values() else []
    or_barred = f", or there is no token that {' and '.join(barring)} leave" if barring else ""
    return Completion(
        request=sequence.group.request,
        sample=sequence.sample,
        token_ids=sequence.tokens,
        text="" if has_text and params.detokenize else None,
        finish_reason="error",
        stop_reason=None,
        cumulative_logprob=sequence.cumulative_logprob,
        logprobs=sequence.logprobs,
        prompt_logprobs=sequence.group.prompt_logprobs,
        num_cached_tokens=sequence.group.num_cached or 0,
        error=f"the model's logits are NaN or infinite after {count:,} tokens{or_barred}",
    )


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
        rank, ids, of_ids = top[place]
        best = dict(zip(ids[:wanted], of_ids[:wanted], strict=True))
        if sequence.logprobs is None:
            sequence.logprobs = []
        entry = TokenLogprobs(sequence.tokens[-1], logprobs[place], best, rank)
        sequence.logprobs.append(entry)
