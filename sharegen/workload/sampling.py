"""How the samples of a job are drawn: the section `sampling` of a recipe."""

# ruff: noqa: RUF012 (pydantic copies defaults; ruff does not see its models behind Strict)

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sharegen.common.stop_rule import StopRule
from sharegen.common.structured import StructuredOutputsParams
from sharegen.errors import UsageError
from sharegen.workload.validation import Strict
from sharegen.workload.values import NonEmpty

MAX_SAMPLES = 1_000_000
"""Of one problem: no estimate needs more, and a slip of the hand should not fill the memory."""


def _check_rule(text: str) -> str:
    """A rule in its one spelling: `window` is `window=5`."""
    return str(StopRule.parse(text))


def _check_structured(value: dict[str, Any]) -> dict[str, Any]:
    """In its one spelling: of a schema its text, in which the order of the properties counts.

    What the grammar itself says is looked at when a job is made: a journal is read without.
    """
    try:
        asked = StructuredOutputsParams.of(value)
    except UsageError as error:
        raise ValueError(str(error)) from None
    assert asked is not None
    return asked.as_dict()


Structured = Annotated[dict[str, Any], AfterValidator(_check_structured)]
Rule = Annotated[str, AfterValidator(_check_rule)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class Sampling(Strict):
    """How to draw and where to stop; names and ranges are those of `SamplingParams`.

    max_tokens: of a sample; null is all that the context has room for. logprobs: how many of the
    likeliest tokens the journal has with each token's own log-probability; prompt_logprobs: of the
    prompt's tokens, in the line of its first sample. detokenize: whether samples have a text.
    structured_outputs: what texts have to be, one of json, regex, choice, grammar and json_object.
    stop_when: the rule by which a problem has samples enough before all are drawn (StopRule).
    decoding: "beam" finds the likeliest texts instead of drawing any, and keeps the best `samples`
        of them. beam_width: how many it follows; null is as many as it keeps. length_penalty,
        early_stopping: names and ranges are those of `BeamSearchParams`.
    """

    samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    temperature: float = Field(default=1.0, ge=0, le=1e6, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, lt=1)
    repetition_penalty: float = Field(default=1.0, ge=1e-6, le=1e6, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, ge=-1e6, le=1e6, allow_inf_nan=False)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-1e30, le=1e30)]] = {}
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    bad_words: list[NonEmpty] = []
    max_tokens: int | None = Field(default=256, ge=1)
    min_tokens: int = Field(default=0, ge=0)
    stop: list[NonEmpty] = []
    stop_token_ids: list[TokenId] = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured_outputs: Structured | None = None
    logprobs: int | None = Field(default=None, ge=0)
    prompt_logprobs: int | None = Field(default=None, ge=0)
    seed: int = 0
    stop_when: Rule | None = None
    decoding: Literal["sample", "beam"] = "sample"
    beam_width: int | None = Field(default=None, ge=1)
    length_penalty: float = Field(default=1.0, ge=-100, le=100)
    early_stopping: bool | Literal["never"] = False

    @property
    def rows(self) -> int:
        """Rows that a problem takes, if all of them run: one a sample, or one a beam."""
        if self.decoding == "sample":
            return self.samples
        return self.samples if self.beam_width is None else self.beam_width

    @property
    def rule(self) -> StopRule | None:
        return None if self.stop_when is None else StopRule.parse(self.stop_when)

    def problem_tokens(self, context_length: int) -> int:
        """Tokens that are drawn for a problem, at most."""
        return self.rows * (self.max_tokens or context_length)
