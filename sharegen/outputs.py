"""What the Python API hands out, in vLLM's terms.

The engine notes log-probabilities in its own form. They become vLLM's, a mapping of token ids with
an object for each, when they are first looked at: most are never, and there are many.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sharegen.common.vllm_names import OUTPUT_NOT_HERE, absent
from sharegen.engine.core.request import Completion, FinishReason, TokenLogprobs
from sharegen.engine.text.detokenize import decode
from sharegen.engine.text.vocabulary import Vocabulary
from sharegen.errors import UsageError

_VLLM: dict[FinishReason, Literal["stop", "length", "error"]] = {
    "eos": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "error": "error",
}

_shown = reprlib.Repr()
_shown.maxstring, _shown.maxother, _shown.maxlist = 120, 400, 6


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one position, under the model's raw distribution or what logprobs_mode says.

    logprob: natural log.
    rank: its place among all tokens, 1 for the likeliest.
    decoded_token: what it adds to a text that it follows, with the space before a word; None
        without a tokenizer.
    """

    logprob: float
    rank: int
    decoded_token: str | None


class _Shown:
    """Shows fields that say something, each in few words, and makes one when it is asked for.

    That is the field named `_made`, of the entries `_noted`. A copy or a pickle has it, and not
    what it is made of.
    """

    _made: str
    _noted: Iterable[TokenLogprobs | None] | None
    _tokenizer: Any

    def __getattr__(self, name: str) -> Any:
        if name != self._made:
            raise absent(self, name, OUTPUT_NOT_HERE)
        found = None if self._noted is None else mappings(self._noted, self._tokenizer)
        setattr(self, name, found)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    def __repr__(self) -> str:
        values = {each.name: vars(self).get(each.name) for each in fields(self)}  # type: ignore[arg-type]
        said = [f"{name}={_shown.repr(value)}" for name, value in values.items()
                if value is not None and name != self._made]  # fmt: skip
        return f"{type(self).__name__}({', '.join(said)})"


@dataclass(repr=False)
class CompletionOutput(_Shown):
    """One sample.

    index: of the sample, from 0.
    text: decoded and cut at the stop string; None without a tokenizer or with detokenize=False, and
        empty where the sample failed.
    token_ids: all tokens drawn, the one that completed a stop (or EOS) included.
    cumulative_logprob: sum of their log-probabilities under the model's raw distribution (before
        temperature, filters and penalties), or the one that logprobs_mode says, natural log.
    finish_reason: "stop", "length", or "error" for a sample that failed.
    stop_reason: the stop string or token id that matched.
    ended_by: more than finish_reason says: "eos", "stop" (a stop string or stop token id), "length"
        (max_tokens), "context" (the model's, or max_model_len), "error".
    error: what happened, where the sample failed.
    score: of a text that a beam search found, what these are ranked by.
    logprobs: where SamplingParams want them, for each token a mapping of ids to Logprob: its own
        first, then the likeliest.
    """

    index: int
    text: str | None
    token_ids: list[int]
    cumulative_logprob: float
    finish_reason: Literal["stop", "length", "error"]
    stop_reason: str | int | None
    ended_by: FinishReason
    error: str | None = None
    score: float | None = None
    logprobs: list[dict[int, Logprob]] | None = field(init=False)

    _made = "logprobs"

    @classmethod
    def of(cls, completion: Completion, tokenizer: Any) -> CompletionOutput:
        """What the engine finished, in vLLM's terms."""
        output = cls(
            index=completion.sample,
            text=completion.text,
            token_ids=completion.token_ids,
            cumulative_logprob=completion.cumulative_logprob,
            finish_reason=_VLLM[completion.finish_reason],
            stop_reason=completion.stop_reason,
            ended_by=completion.finish_reason,
            error=completion.error,
            score=completion.score,
        )
        output._noted, output._tokenizer = completion.logprobs, tokenizer
        vars(output)["_completion"] = completion
        return output

    @property
    def completion(self) -> Completion:
        """What it is of. Raises UsageError for a copy or what was pickled."""
        found = vars(self).get("_completion")
        if found is None:
            raise UsageError("this output is a copy: give the one that the stream yielded")
        return found


@dataclass(repr=False)
class RequestOutput(_Shown):
    """A prompt and its samples, by their index.

    request_id: a number that no other request of the LLM has.
    prompt: the text, None where token ids were given alone.
    prompt_token_ids: its tokens.
    outputs: the samples, by their index.
    finished: True, always: `generate` returns what is finished.
    num_cached_tokens: of the prompt, that others had computed already, of this call or before.
    prompt_logprobs: where SamplingParams want them, as CompletionOutput's for each prompt token;
        None for the first one, which nothing comes before.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = field(init=False)

    _made = "prompt_logprobs"

    @classmethod
    def of(
        cls,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: list[int],
        completions: list[Completion],
        tokenizer: Any,
    ) -> RequestOutput:
        """The output of one prompt.

        completions: all of its samples, in any order.
        """
        completions = sorted(completions, key=lambda completion: completion.sample)
        output = cls(
            request_id,
            prompt,
            prompt_token_ids,
            [CompletionOutput.of(completion, tokenizer) for completion in completions],
            num_cached_tokens=completions[0].num_cached_tokens,
        )
        output._noted, output._tokenizer = completions[0].prompt_logprobs, tokenizer
        return output


@dataclass(frozen=True)
class BeamSearchSequence:
    """One text that a beam search found.

    tokens: of the prompt and of the text, the one that ended it included.
    text: of both, without special tokens; None without a tokenizer.
    cum_logprob: log-probability of the text.
    score: what texts are ranked by.
    finish_reason, stop_reason: as CompletionOutput's.
    output: the text alone, with all that is known of it.
    """

    tokens: list[int]
    text: str | None
    cum_logprob: float
    score: float | None
    finish_reason: Literal["stop", "length", "error"]
    stop_reason: str | int | None
    output: CompletionOutput

    @property
    def logprobs(self) -> list[dict[int, Logprob]] | None:
        """Log-probabilities as in CompletionOutput, if BeamSearchParams ask for them."""
        return self.output.logprobs

    @classmethod
    def of(cls, prompt: list[int], output: CompletionOutput, tokenizer: Any) -> BeamSearchSequence:
        tokens = [*prompt, *output.token_ids]
        return cls(
            tokens=tokens,
            text=None if tokenizer is None else decode(tokenizer, tokens),
            cum_logprob=output.cumulative_logprob,
            score=output.score,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_reason,
            output=output,
        )


@dataclass(frozen=True)
class BeamSearchOutput:
    """A prompt and the texts that were found for it, the best first."""

    prompt: str | None
    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence]

    @classmethod
    def of(cls, found: RequestOutput, tokenizer: Any) -> BeamSearchOutput:
        prompt = found.prompt_token_ids
        sequences = [BeamSearchSequence.of(prompt, each, tokenizer) for each in found.outputs]
        return cls(found.prompt, prompt, sequences)


def mappings(
    entries: Iterable[TokenLogprobs | None], tokenizer: Any
) -> list[dict[int, Logprob] | None]:
    """For each entry the token's own Logprob and those of the likeliest, by token id."""
    vocabulary = None if tokenizer is None else Vocabulary.of(tokenizer)

    def text(token: int) -> str | None:
        return None if vocabulary is None else vocabulary.text(token, special=True)

    found: list[dict[int, Logprob] | None] = []
    for entry in entries:
        if entry is None:
            found.append(None)
            continue
        own = entry.token_id
        at = {own: Logprob(entry.logprob, entry.rank, text(own))}
        for rank, (token, logprob) in enumerate(entry.top.items(), 1):
            at.setdefault(token, Logprob(logprob, rank, text(token)))
        found.append(at)
    return found
