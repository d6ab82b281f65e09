"""Why a sample has ended, and the completion that it is then."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

from sharegen.engine.core.request import Completion, FinishReason, TokenLogprobs
from sharegen.engine.schedule.sequence import SequenceGroup
from sharegen.engine.text.detokenize import Context, prompt_tail
from sharegen.engine.text.stopping import Stops, end_tokens


@dataclass(frozen=True)
class Ending:
    """How a sample ended. reason, stop_reason: as a Completion's. text: where a stop string cut it,
    else None.

    hidden: whether the last token ended it and is no part of the text.
    """

    reason: FinishReason
    stop_reason: str | int | None
    text: str | None = None
    hidden: bool = False


@dataclass(frozen=True)
class OfSample:
    """The tokens of a sample, and what the model said of them."""

    tokens: list[int]
    cumulative_logprob: float
    logprobs: list[TokenLogprobs] | None
    score: float | None = None


class Endings:
    """Finds them under one tokenizer, or none; eos_token_ids: the model's."""

    def __init__(self, tokenizer: Any | None, eos_token_ids: Seq[int]) -> None:
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids

    def tokens_of(self, group: SequenceGroup) -> Seq[int]:
        """The tokens that end a sample of the group by themselves."""
        return tuple(end_tokens(group.request.params, self.tokenizer, self.eos_token_ids))

    def stops_of(self, group: SequenceGroup) -> Stops | None:
        """What ends a sample of the group in its text, if something does."""
        params = group.request.params
        if group.stops is None and params.stop:
            group.stops = Stops.of(self.tokenizer, params.stop, not params.skip_special_tokens)
        return group.stops

    def find(
        self, group: SequenceGroup, tokens: Seq[int], is_end: bool, may_stop: bool
    ) -> Ending | None:
        """How a group's sample with these tokens has ended.

        is_end: whether its newest token alone says so; may_stop: whether that may complete a stop
        string.
        """
        params = group.request.params
        include = params.include_stop_str_in_output
        if is_end:
            if group.ends is None:
                group.ends = end_tokens(params, self.tokenizer, self.eos_token_ids)
            reason, stop_reason = group.ends[tokens[-1]]
            return Ending(reason, stop_reason, hidden=not include)
        match = None
        stops = self.stops_of(group) if may_stop else None
        if stops is not None:
            match = stops.match(
                group.request.prompt_token_ids,
                tokens,
                min_tokens=params.min_tokens,
                include_stop=include,
            )
        if match is not None:
            return Ending("stop", match.stop, match.text)
        if len(tokens) >= group.limit:
            return Ending(group.limit_reason, None)
        return None

    def completion(
        self, group: SequenceGroup, sample: int, drawn: OfSample, ending: Ending
    ) -> Completion:
        """What a sample of a group is that has ended so."""
        if ending.reason == "error":
            return self.failure(group, sample, drawn, _no_room(len(drawn.tokens)))
        text = ending.text
        params = group.request.params
        if text is None and self.tokenizer is not None and params.detokenize:
            shown = drawn.tokens[:-1] if ending.hidden else drawn.tokens
            special = not params.skip_special_tokens
            text = self._context_of(group, special).text_of(self.tokenizer, shown)
            if isinstance(ending.stop_reason, str) and not ending.hidden and not special:
                text += ending.stop_reason  # a special token, which decoding left out
        return Completion(
            request=group.request,
            sample=sample,
            token_ids=drawn.tokens,
            text=text,
            finish_reason=ending.reason,
            stop_reason=ending.stop_reason,
            cumulative_logprob=drawn.cumulative_logprob,
            logprobs=drawn.logprobs,
            prompt_logprobs=group.prompt_logprobs,
            num_cached_tokens=group.num_cached or 0,
            score=drawn.score,
        )

    def _context_of(self, group: SequenceGroup, special: bool) -> Context:
        """What the texts of all samples of the group follow."""
        if group.context is None:
            tail = prompt_tail(self.tokenizer, group.request.prompt_token_ids)
            group.context = Context.of(self.tokenizer, tail, special)
        found: Context = group.context
        return found

    def failure(self, group: SequenceGroup, sample: int, drawn: OfSample, error: str) -> Completion:
        """What becomes of a sample of which nothing more can be drawn."""
        return Completion(
            request=group.request,
            sample=sample,
            token_ids=drawn.tokens,
            text="" if self.tokenizer is not None and group.request.params.detokenize else None,
            finish_reason="error",
            stop_reason=None,
            cumulative_logprob=drawn.cumulative_logprob,
            logprobs=drawn.logprobs,
            prompt_logprobs=group.prompt_logprobs,
            num_cached_tokens=group.num_cached or 0,
            error=error,
        )


def _no_room(tokens: int) -> str:
    """Why a sample without max_tokens cannot go on."""
    return (
        f"the KV cache has no room for more after {tokens:,} tokens: give it more memory, or the "
        "sample max_tokens"
    )
