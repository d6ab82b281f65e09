"""The nouns of decoding: what is asked (Request, SamplingParams), what comes out (Completion)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sharegen.errors import UsageError

FinishReason = Literal["eos", "stop", "length", "context"]
"""Why a completion ended: an EOS token, a stop string or stop token id, `max_tokens`, or the
model's context length."""


@dataclass(frozen=True)
class SamplingParams:
    """How to draw the samples of one request, in vLLM's terms.

    n: samples per prompt.
    temperature: 0 is greedy.
    top_p, min_p: probabilities in (0, 1] and [0, 1); top_k: tokens, 0 or -1 for all.
    repetition_penalty: over prompt and output; presence_penalty, frequency_penalty: over the
        output alone.
    max_tokens, min_tokens: tokens of one sample.
    stop: strings that end a sample and are cut from its text unless include_stop_str_in_output.
    seed: replaces the engine's seed for this request.
    logprobs, prompt_logprobs: how many of the raw distribution's top tokens to report with each
        output or prompt token's own log-probability. For a prompt's, the logits of a whole
        prefill batch are held at once.

    Raises UsageError for a value outside its range, TypeError for an unknown field.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    bad_words: Sequence[str] = ()
    max_tokens: int = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        def check(name: str, good: bool, want: str) -> None:
            if not good:
                raise UsageError(f"{name} is {getattr(self, name)!r}: it must be {want}")

        def is_int(value: object) -> bool:
            return isinstance(value, int) and not isinstance(value, bool)

        def is_finite(value: object) -> bool:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            return number and math.isfinite(value)  # type: ignore[arg-type]

        check("n", is_int(self.n) and self.n >= 1, "a whole number of at least 1")
        check("temperature", is_finite(self.temperature) and self.temperature >= 0, "0 or more")
        check("top_p", is_finite(self.top_p) and 0 < self.top_p <= 1, "above 0 and at most 1")
        check("top_k", is_int(self.top_k) and self.top_k >= -1, "a whole number, 0 or -1 for all")
        check("min_p", is_finite(self.min_p) and 0 <= self.min_p < 1, "at least 0 and below 1")
        check(
            "repetition_penalty",
            is_finite(self.repetition_penalty) and self.repetition_penalty > 0,
            "above 0",
        )
        check("presence_penalty", is_finite(self.presence_penalty), "a finite number")
        check("frequency_penalty", is_finite(self.frequency_penalty), "a finite number")
        check(
            "max_tokens",
            is_int(self.max_tokens) and self.max_tokens >= 1,
            "a whole number of at least 1",
        )
        check(
            "min_tokens",
            is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_tokens,
            "a whole number from 0 to max_tokens",
        )
        check("seed", self.seed is None or is_int(self.seed), "a whole number or None")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            check(
                name,
                value is None or (is_int(value) and value >= 0),
                "a whole number of at least 0, or None",
            )
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stops)
        check("stop", all(isinstance(s, str) and s for s in stops), "non-empty strings")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        object.__setattr__(self, "bad_words", tuple(self.bad_words or ()))


@dataclass(frozen=True)
class Request:
    """One prompt and the samples wanted of it.

    key: what the random stream hangs on, together with the seed, the sample's index and the
        position (a row's id, hashed, or the request's index in the call): the draws of a request
        never depend on what else runs.
    samples: the indices of the samples to draw; a resumed job leaves out those it has.
    keep: whether the KV of finished samples stays, until its memory is needed or the job ends, so
        that they can be forked without computing it again.
    """

    key: int
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    samples: Sequence[int]
    keep: bool = False


@dataclass(frozen=True)
class TokenLogprobs:
    """The raw distribution at one position: the chosen token's log-probability and the top k's."""

    token_id: int
    logprob: float
    top: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """One finished sample.

    token_ids: all tokens drawn, the one that completed a stop (or EOS) included.
    text: decoded and cut at the stop string, without special tokens; None without a tokenizer.
    finish_reason: see FinishReason; stop_reason: the stop string or token id that matched.
    cumulative_logprob: sum over token_ids of the log-probability under the model's raw
        distribution (before temperature, filters and penalties), natural log.
    logprobs, prompt_logprobs: an entry a token where the request wants them; the prompt's begin
        with None, for nothing comes before the first token. All samples of a request share one
        list of the prompt's.
    """

    request: Request
    sample: int
    token_ids: list[int]
    text: str | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    cumulative_logprob: float
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
