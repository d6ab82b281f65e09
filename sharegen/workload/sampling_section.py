"""How the samples of a job are drawn: the section `sampling` of a recipe."""

# ruff: noqa: RUF012 (pydantic copies defaults; ruff does not see its models behind Strict)

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from sharegen.common.parameters.parameter import Parameter
from sharegen.common.parameters.sampling import MOST_BIAS, RecipeSampling
from sharegen.common.stop_rule import StopRule
from sharegen.common.structured import StructuredOutputsParams
from sharegen.errors import UsageError
from sharegen.workload.validation import Strict
from sharegen.workload.values import NonEmpty


def _check_rule(text: str) -> str:
    """A rule in its one spelling: `window` is `window=5`."""
    return str(StopRule.parse(text))


def _check_structured(value: dict[str, Any]) -> dict[str, Any]:
    """The value in one spelling: a schema as its text, since the order of properties counts.

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


class Sampling(Strict, RecipeSampling):  # type: ignore[misc]  # pydantic freezes it, too
    """How to draw and where to stop, by the names of `SamplingParams` and `BeamSearchParams`."""

    logit_bias: dict[TokenId, Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]] = {}
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1)] | None = None
    bad_words: list[NonEmpty] = []
    stop: list[NonEmpty] = []
    stop_token_ids: list[TokenId] = []
    structured_outputs: Structured | None = None
    stop_when: Rule | None = None
    decoding: Annotated[
        Literal["sample", "beam"],
        Parameter(
            '"beam" finds the likeliest texts instead of drawing any, and keeps the best `samples` '
            "of them.",
            examples=("beam",),
        ),
    ] = "sample"
    beam_width: Annotated[
        int | None,
        Parameter(
            "How many texts a beam search follows; null is as many as it keeps.",
            ge=1,
            examples=(8,),
        ),
    ] = None

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
        """The number of tokens that are drawn for a problem, at most."""
        return self.rows * (self.max_tokens or context_length)
