"""The nouns of decoding: what is asked (Request, SamplingParams), what comes out (Completion)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from sharegen.common.parameters.parameter import Parameter, check, declared, described
from sharegen.common.parameters.sampling import MOST_BIAS, BeamParameters, SamplingParameters
from sharegen.common.structured import StructuredOutputsParams
from sharegen.common.vllm_names import BEAM_NOT_HERE, SAMPLING_NOT_HERE, refusing
from sharegen.errors import UsageError

FinishReason = Literal["eos", "stop", "length", "context", "error"]
"""Why a completion ended: an EOS token, a stop string or stop token id, `max_tokens`, the model's
context length, or an error: the model's logits were no distribution, or a sample without
`max_tokens` got to the end of the KV cache."""


NO_DISTRIBUTION = "the model's logits are NaN or infinite"
"""How the error of a sample begins that nothing could be drawn for."""

_SURROGATE = re.compile("[\ud800-\udfff]")

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy: dividing a logit by it would only lose its digits."""


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _number(value: Any, least: float, most: float) -> bool:
    """Whether it is one, from `least` to `most`; a NaN is not."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and least <= float(value) <= most


def _all(values: Any, good: Callable[[Any], bool]) -> bool:
    """Whether it is a list of what is good, or None; a text is no list of its characters."""
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    return values is None or (is_list and all(map(good, values)))


def _text(value: Any) -> bool:
    """Whether it is one, of whole characters: no tokenizer reads half a surrogate pair."""
    return isinstance(value, str) and bool(value) and not _SURROGATE.search(value)


def _word(value: Any) -> bool:
    return _text(value) and bool(value.strip())


def _biases(values: Any) -> bool:
    return values is None or (
        isinstance(values, dict)
        and all(_whole(token, 0) for token in values)
        and all(x == -math.inf or _number(x, -MOST_BIAS, MOST_BIAS) for x in values.values())
    )


def _token(value: Any) -> bool:
    return _whole(value, 0) and int(value) < 1 << 63


_LISTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "logit_bias": (
        _biases,
        f"numbers from {-MOST_BIAS:g} to {MOST_BIAS:g}, or -inf, by whole token ids",
    ),
    "bad_words": (
        lambda x: _word(x) or _all(x, _word),
        "words of whole characters, none of them blank",
    ),
    "allowed_token_ids": (
        lambda x: x is None or (_all(x, _token) and len(x) > 0),
        "a list of token ids that is not empty, or None for all",
    ),
    "stop": (lambda x: _text(x) or _all(x, _text), "non-empty strings of whole characters"),
    "stop_token_ids": (lambda x: _all(x, _token), "a list of token ids"),
}
"""For each field that is a list or a mapping: whether a value will do, and what does in words."""


@refusing(SAMPLING_NOT_HERE)
@described()
@dataclass(frozen=True)
class SamplingParams(SamplingParameters):
    """How to draw the samples of one request, in vLLM's terms.

        SamplingParams(n=20, temperature=0.7, max_tokens=256, stop=["\\n\\n"])

    A seed replaces the engine's for this request; None and -1 are none, as in vLLM.
    structured_outputs are StructuredOutputsParams, or a mapping of their names. Parameters cannot
    be changed: `dataclasses.replace(params, n=4)` makes others.

    Raises UsageError for a value outside its range, TypeError for an unknown field.
    """

    n: Annotated[int, Parameter("Samples of each prompt.", ge=1)] = 1
    structured_outputs: StructuredOutputsParams | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check(self, _NUMBERS)
        for name, (good, want) in _LISTS.items():
            _check(name, getattr(self, name), good(getattr(self, name)), want)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            _check("min_tokens", self.min_tokens, False, "a whole number from 0 to max_tokens")
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            words = (value,) if isinstance(value, str) else tuple(value or ())
            object.__setattr__(self, name, words)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids or ()))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
        if self.stop and not self.detokenize:
            raise UsageError("stop strings are looked for in text: leave out stop, or detokenize")
        if self.seed == -1:
            object.__setattr__(self, "seed", None)
        structured = StructuredOutputsParams.of(self.structured_outputs)
        object.__setattr__(self, "structured_outputs", structured)

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn at random: all samples of a request are the same."""
        return self.temperature < GREEDY_BELOW

    @property
    def looks_back(self) -> bool:
        """Whether draws look at the sample's own tokens."""
        penalties = self.presence_penalty or self.frequency_penalty
        return bool(penalties or self.repetition_penalty != 1 or self.bad_words)

    @property
    def reads_prompt(self) -> bool:
        """Whether the draws depend on the prompt's tokens beside its logits."""
        return self.repetition_penalty != 1 or bool(self.bad_words)


_NUMBERS = [
    each
    for name, each in declared(SamplingParams).items()
    if name not in (*_LISTS, "structured_outputs")
]


def _check(name: str, value: Any, good: bool, want: str) -> None:
    if not good:
        raise UsageError(f"{name} is {value!r}: it must be {want}")


_NO_DRAWS = "0: beam search draws nothing at random, it follows the likeliest texts"


@refusing(BEAM_NOT_HERE)
@described(SamplingParameters)
@dataclass(frozen=True)
class BeamSearchParams(BeamParameters):
    """The rules by which the likeliest texts of one request are searched for, in vLLM's terms.

    beam_width: So many texts come out, the best first.
    temperature: It is vLLM's, and 0 alone.

    Scores, their length and early_stopping are those of transformers' `generate(num_beams=...)`.

    Raises UsageError for a value outside its range, TypeError for an unknown field.
    """

    beam_width: Annotated[int, Parameter("How many texts are followed side by side.", ge=1)]
    max_tokens: int | None
    ignore_eos: bool = False
    temperature: float = 0.0
    include_stop_str_in_output: bool = False
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    skip_special_tokens: bool = True
    logprobs: int | None = None

    def __post_init__(self) -> None:
        check(self, declared(BeamSearchParams).values())
        _check("temperature", self.temperature, _number(self.temperature, 0, 0), _NO_DRAWS)
        for name in ("stop", "stop_token_ids"):
            object.__setattr__(self, name, getattr(self.of_rows, name))

    @property
    def of_rows(self) -> SamplingParams:
        """What a row asks for that follows one of the beams."""
        return SamplingParams(
            n=self.beam_width,
            temperature=0.0,
            max_tokens=self.max_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            include_stop_str_in_output=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=self.logprobs,
        )


Params = SamplingParams | BeamSearchParams


@dataclass(frozen=True)
class Request:
    """One prompt and the samples wanted of it.

    key: what the random stream depends on, together with the seed, the sample's index and the
        position (a row's id, hashed, or the request's index in the call): the draws of a request
        never depend on what else runs.
    samples: the indices of the samples to draw; a resumed job leaves out those it has.
    keep: whether the KV of finished samples stays, until its memory is needed or the job ends, so
        that they can be forked without computing it again.
    required: samples with an index below it start first; the others may turn out not to be wanted,
    and
        start where a row would be empty. None: all are wanted.
    text_tokens: how many of the prompt's last tokens are text of structured_outputs that the
        samples go on with, as a fork's do.
    splits: where the tree of the whole job splits its path, where that is known; alone: how many
        samples alone read its last node in that tree, as far as it matters; 0 where others do, too.
    stream: what the random streams depend on in place of the key, where that is said.
    fills_context: whether what follows the prompt is never fed, so that the prompt may be as long
        as the context; params then ask for one token.
    logprobs_from: the first prompt token whose log-probability is told where params asks for
        them, 1 at least; what comes before costs no logits.
    beam: where the samples are the best texts that a beam search finds, by beam rank; params are
        then its `of_rows`.
    """

    key: int
    prompt_token_ids: Sequence[int]
    params: SamplingParams
    samples: Sequence[int]
    keep: bool = False
    splits: Sequence[int] | None = None
    required: int | None = None
    alone: int = 0
    logprobs_from: int = 1
    text_tokens: int = 0
    stream: int | None = None
    fills_context: bool = False
    beam: BeamSearchParams | None = None

    @cached_property
    def tokens(self) -> npt.NDArray[np.int32]:
        """The prompt as an array, made once: for a long one that takes a while.

        What int32 does not hold becomes its largest or least number, which no vocabulary has.
        """
        ends = np.iinfo(np.int32)
        return np.asarray(self.prompt_token_ids).clip(ends.min, ends.max).astype(np.int32)

    @property
    def stream_key(self) -> int:
        """What the random streams of its samples depend on, beside seed and sample."""
        return self.key if self.stream is None else self.stream

    @property
    def rows(self) -> int:
        """Rows of a batch that one of its sequences takes: one, or one a beam."""
        return 1 if self.beam is None else self.beam.beam_width

    @property
    def is_endless(self) -> bool:
        """Whether nobody says how long a sample may be."""
        return self.params.max_tokens is None and self.beam is None

    @property
    def readers(self) -> int:
        """How many samples go on from its prompt, as far as it knows; 0 where others do, too."""
        if self.splits is not None:
            return self.alone
        if self.beam is not None:
            return self.rows
        return 1 if self.params.is_greedy else max(self.params.n, len(self.samples))

    def is_alone(self, most: int) -> bool:
        """Whether at most so many samples go on from its prompt, and no others."""
        return 0 < self.readers <= most


@dataclass(frozen=True)
class TokenLogprobs:
    """The raw distribution at one position: the chosen token's log-probability and the top k's.

    rank: the token rank: the chosen token's place among all, 1 for the likeliest.
    """

    token_id: int
    logprob: float
    top: dict[int, float] = field(default_factory=dict)
    rank: int = 1


@dataclass(frozen=True)
class Completion:
    """A sample that has ended, with its text.

    token_ids: all tokens drawn, the one that completed a stop (or EOS) included.
    text: decoded and cut at the stop string, without special tokens; None without a tokenizer, and
        empty where the sample failed.
    finish_reason: see FinishReason; stop_reason: the stop string or token id that matched.
    error: what happened where finish_reason is "error"; token_ids are those drawn until then.
    cumulative_logprob: sum over token_ids of the log-probability under the model's raw
        distribution (before temperature, filters and penalties), or what logprobs_mode says,
        natural log.
    num_cached_tokens: of the prompt, that were computed for other requests already.
    score: of a beam search, what its texts are ranked by.
    logprobs, prompt_logprobs: an entry a token where the request wants them; the prompt's begin
        with None, for nothing comes before the first token, and are None before logprobs_from.

    All samples of a request share one list of the prompt's, those of a greedy request all lists.
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
    error: str | None = None
    num_cached_tokens: int = field(default=0, compare=False)
    score: float | None = None
