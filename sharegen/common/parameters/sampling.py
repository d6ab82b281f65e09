"""How samples are drawn: the parameters of `SamplingParams` and of a recipe's `sampling`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from sharegen.common.parameters.parameter import Flag, Kind, Parameter, declared

MAX_SAMPLES = 1_000_000
"""Samples of one problem: no estimate needs more, and a slip should not fill the memory."""

# What keeps logits finite in float32 when they are divided by the least temperature.
MOST_BIAS, _MOST_PENALTY = 1e30, 1e6

MAX_TOKENS = Parameter(
    "The most tokens of a sample; null is all that the context has room for after the prompt.",
    ge=1,
    flag=Flag("--max-tokens", "N", "The most tokens of a sample."),
    examples=(512, None),
)


@dataclass(frozen=True, kw_only=True)
class SampleCount:
    """How many samples a recipe asks of a problem."""

    samples: Annotated[
        int,
        Parameter(
            "Samples of each problem.",
            ge=1,
            le=MAX_SAMPLES,
            flag=Flag("--samples, -n", "N"),
            examples=(20,),
        ),
    ] = 1


@dataclass(frozen=True, kw_only=True)
class SamplingParameters:
    """What a request and a recipe say by the same names; the defaults are a request's."""

    temperature: Annotated[
        float,
        Parameter(
            "Sampling temperature; 0 is greedy.",
            ge=0,
            le=1e6,
            flag=Flag("--temperature", "T"),
            kind="filter",
            examples=(0.7,),
        ),
    ] = 1.0
    top_p: Annotated[
        float,
        Parameter(
            "Draw only from the likeliest tokens whose probabilities sum to this (nucleus), "
            "above 0 and at most 1.",
            gt=0,
            le=1,
            flag=Flag("--top-p", "P"),
            kind="filter",
            examples=(0.95,),
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        Parameter(
            "Draw only from this many of the likeliest tokens; 0 and -1 are all.",
            ge=-1,
            flag=Flag("--top-k", "K"),
            kind="filter",
            examples=(40,),
        ),
    ] = 0
    min_p: Annotated[
        float,
        Parameter(
            "Draw only tokens that are at least this fraction as likely as the likeliest one.",
            ge=0,
            lt=1,
            kind="filter",
            examples=(0.05,),
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Parameter(
            "Above 1 makes tokens of the prompt and the output less likely, below 1 likelier.",
            ge=1 / _MOST_PENALTY,
            le=_MOST_PENALTY,
            kind="penalty",
            examples=(1.1,),
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        Parameter(
            "Subtracted from the logits of tokens that are in the output.",
            ge=-_MOST_PENALTY,
            le=_MOST_PENALTY,
            kind="penalty",
            examples=(0.5,),
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Parameter(
            "Subtracted from a token's logit once for each time that it is in the output.",
            ge=-_MOST_PENALTY,
            le=_MOST_PENALTY,
            kind="penalty",
            examples=(0.2,),
        ),
    ] = 0.0
    logit_bias: Annotated[
        dict[int, float] | None,
        Parameter(
            "What is added to the logits of tokens, by their ids; a request may say -inf, which "
            "bars a token.",
            examples=({"198": -100},),
        ),
    ] = None
    allowed_token_ids: Annotated[
        Sequence[int] | None,
        Parameter(
            "The only tokens that are drawn; by default all. A sample for which the other "
            "parameters leave none of them fails.",
            examples=([362, 425, 356, 423],),
        ),
    ] = None
    bad_words: Annotated[
        str | Sequence[str],
        Parameter(
            "Texts that are never drawn at the start of a word.", examples=(["sorry", "cannot"],)
        ),
    ] = ()
    max_tokens: Annotated[int | None, MAX_TOKENS] = 16
    min_tokens: Annotated[
        int,
        Parameter(
            "No sample ends before it has so many tokens, at most max_tokens.",
            ge=0,
            examples=(16,),
        ),
    ] = 0
    stop: Annotated[
        str | Sequence[str],
        Parameter(
            "Texts that end a sample; they are cut from it unless include_stop_str_in_output.",
            flag=Flag(
                "--stop",
                "TEXT",
                "Text that ends a sample (repeatable; \\n is a newline).",
                default="none",
            ),
            examples=(["\n\n", "\nQuestion:"],),
        ),
    ] = ()
    stop_token_ids: Annotated[
        Sequence[int], Parameter("Tokens that end a sample, by their ids.", examples=([198],))
    ] = ()
    include_stop_str_in_output: Annotated[
        bool,
        Parameter(
            "Whether the stop string that ended a sample stays in its text.", examples=(True,)
        ),
    ] = False
    ignore_eos: Annotated[
        bool, Parameter("Whether samples go on after an EOS token.", examples=(True,))
    ] = False
    detokenize: Annotated[
        bool,
        Parameter("Whether samples have a text, which stop strings need.", examples=(False,)),
    ] = True
    skip_special_tokens: Annotated[
        bool,
        Parameter("Whether special tokens are left out of the text.", examples=(False,)),
    ] = True
    logprobs: Annotated[
        int | None,
        Parameter(
            "How many of the likeliest tokens are reported with each output token's own "
            "log-probability, of the model's own distribution.",
            ge=0,
            examples=(5,),
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Parameter(
            "How many of the likeliest tokens are reported with each prompt token's own "
            "log-probability. The logits of a whole prefill batch are held at once.",
            ge=0,
            examples=(0,),
        ),
    ] = None
    seed: Annotated[
        int | None,
        Parameter("Random seed.", flag=Flag("--seed", "SEED"), examples=(7,)),
    ] = None
    structured_outputs: Annotated[
        Any,
        Parameter(
            "What the text has to be: one of json, regex, choice, grammar and json_object. What "
            "ends a sample is drawn only where the text is complete.",
            examples=({"choice": ["yes", "no"]}, {"regex": "[0-9]{4}"}, {"json_object": True}),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BeamParameters:
    """What a beam search and a recipe say by the same names; scores are transformers' own."""

    length_penalty: Annotated[
        float,
        Parameter(
            "A text's score is its log-probability over the number of its tokens, the one that "
            "ends it included, to this power: above 0 favours long texts.",
            ge=-100,
            le=100,
            examples=(0.6,),
        ),
    ] = 1.0
    early_stopping: Annotated[
        bool | Literal["never"],
        Parameter(
            "When a beam search ends, once enough texts have ended. True: at once; False: when no "
            'beam\'s score, as it stands, beats the worst of these; "never": when none can beat it '
            "at any length.",
            examples=(True, "never"),
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class RecipeSampling(BeamParameters, SamplingParameters, SampleCount):
    """What a recipe says, and the command line for it."""

    max_tokens: Annotated[int | None, MAX_TOKENS] = 256
    seed: int = 0
    stop_when: Annotated[
        str | None,
        Parameter(
            "No more samples of a problem are drawn once its vote is decided (exact), "
            "confident[=0.95] or unanimous over a window[=5] (approximate), or right=K of its "
            "samples are right.",
            flag=Flag(
                "--stop-when",
                "RULE",
                "Draw no more of a problem once its vote is decided (exact), confident[=0.95] or "
                "unanimous over a window[=5] (approximate), or right=K of its samples are right.",
                default="none",
                complete=("decided", "confident", "window", "right="),
            ),
            examples=("decided", "confident=0.99", "window=5", "right=1"),
        ),
    ] = None


def _of_kind(kind: Kind) -> tuple[str, ...]:
    known = declared(SamplingParameters).items()
    return tuple(name for name, each in known if each.parameter.kind == kind)


FILTERS = _of_kind("filter")
"""Parameters that change nothing where nothing is drawn at random."""

PENALTIES = _of_kind("penalty")
"""Parameters that change the logits by what was said before."""
