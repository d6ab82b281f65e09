"""What the body of a request to OpenAI's endpoints may hold, and what is wrong with another.

A null is a field that is not there, whatever its name: OpenAI's package writes them so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from sharegen.common.names import SHOWN, nearest
from sharegen.common.parameters.parameter import declared
from sharegen.common.parameters.sampling import SamplingParameters
from sharegen.common.structured import from_response_format
from sharegen.common.wrong_value import in_words
from sharegen.errors import UsageError
from sharegen.workload.sampling_section import Sampling

MAX_CHOICES = 10_000
"""Choices of one request, whose answer is one line of a file; OpenAI's bound is 128."""

MAX_TEXTS, MAX_TEXT = 256, 1_000
"""Stop strings or bad words of one request, and characters of each; OpenAI takes 4 stops."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a request, as OpenAI's errors say it: with the field, and a code."""

    message: str
    param: str | None = None
    code: str | None = None


class Refused(Exception):
    """A body that cannot be asked."""

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.fault = Fault(message, param, code)


def _optional(group: type, left_out: Collection[str]) -> dict[str, Any]:
    """Fields of a pydantic model for the parameters of a group, in JSON's types.

    Their ranges are those of a recipe, which what is asked becomes.
    """
    return {
        name: (_JSON_TYPES.get(name, each.hint) | None, None)
        for name, each in declared(group).items()
        if name not in left_out
    }


_JSON_TYPES: dict[str, Any] = {
    "logit_bias": dict[str, float],
    "allowed_token_ids": list[int],
    "bad_words": list[str],
    "stop": str | list[str],
    "stop_token_ids": list[int],
    "structured_outputs": dict[str, Any],
}
_ELSEWHERE = ("detokenize", "logprobs", "prompt_logprobs")
"""Parameters that a body says otherwise, or not at all."""

_Sampled: Any = create_model(
    "_Sampled",
    __config__=ConfigDict(extra="forbid", frozen=True, strict=True),
    **_optional(SamplingParameters, _ELSEWHERE),
)


class RequestBody(_Sampled):
    """What bodies of both endpoints may hold; null is a field that is not there."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    response_format: Any = None
    stream: Literal[False] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The sampling parameters that are said, in a recipe's words."""
        values = {name: getattr(self, name) for name in _SAMPLING}
        values |= {"samples": self.n, "stop": _texts("stop", self.stop)}
        values["bad_words"] = _texts("bad_words", self.bad_words)
        found = {name: value for name, value in values.items() if value is not None}
        return found if self.response_format is None else found | self._format

    @property
    def _format(self) -> dict[str, Any]:
        if self.structured_outputs is not None:
            raise Refused(
                "response_format and structured_outputs are one thing: give one", "response_format"
            )
        try:
            asked = from_response_format(self.response_format)
        except UsageError as error:
            raise Refused(str(error), "response_format") from None
        return {"structured_outputs": None if asked is None else asked.as_dict()}


_SAMPLING = sorted(RequestBody.model_fields.keys() & Sampling.model_fields.keys())
_FIELDS = {"samples": "n"}  # where the words of a recipe differ
_INSTEAD = dict.fromkeys(
    ("guided_json", "guided_regex", "guided_choice", "guided_grammar"), "use structured_outputs"
) | dict.fromkeys(
    ("use_beam_search", "beam_width", "length_penalty", "early_stopping"),
    "requests draw samples: a beam search takes a recipe (sampling.decoding: beam), or "
    "LLM.beam_search",
)
_NOT_SERVED = {
    "audio": "answers are text",
    "moderation": "nothing is moderated",
    "reasoning_effort": "where the chat template knows it, say so in chat_template_kwargs",
    "stream_options": "a batch is not streamed",
    "verbosity": "say it in the prompt",
    "web_search_options": "nothing is searched",
}
"""What OpenAI takes and is refused here -> why, or what to do."""
_MOST_LOGPROBS = 20


class ChatBody(RequestBody):
    messages: list[Any]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None  # see tool_choice.py
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    functions: list[Any] | None = None
    function_call: Literal["none", "auto"] | None = None
    modalities: list[Literal["text"]] | None = None
    # What changes nothing of what is drawn: where a request is kept, counted, cached, sped up.
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    @property
    def told_tools(self) -> list[Any] | None:
        """The tools that the model is given, under either of their names."""
        if self.functions is None:
            return self.tools
        if self.tools is not None:
            raise Refused("functions is the former name of tools: give tools", "functions")
        return [{"type": "function", "function": function} for function in self.functions]

    @property
    def given(self) -> dict[str, Any]:
        found = super().given
        if self.max_completion_tokens is not None:
            if self.max_tokens not in (None, self.max_completion_tokens):
                raise Refused("max_tokens and max_completion_tokens differ: give one", "max_tokens")
            found["max_tokens"] = self.max_completion_tokens
        if self.top_logprobs and not self.logprobs:
            raise Refused("top_logprobs: needs logprobs: true", "top_logprobs")
        if self.logprobs:
            found["logprobs"] = self.top_logprobs or 0
        return found


class TextBody(RequestBody):
    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS)] | None = None
    best_of: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        if self.best_of not in (None, self.n or 1):
            raise Refused(
                f"best_of is {self.best_of} and n {self.n or 1}: ask for n, and keep the best",
                "best_of",
            )
        found = super().given
        return found if self.logprobs is None else {**found, "logprobs": self.logprobs}


def _texts(name: str, value: str | Sequence[str] | None) -> list[str] | None:
    """A text or several as a list. Raises Refused for more than any request needs."""
    if value is None:
        return None
    texts = [value] if isinstance(value, str) else list(value)
    longest = max(map(len, texts), default=0)
    if len(texts) > MAX_TEXTS or longest > MAX_TEXT:
        raise Refused(
            f"{name} has {len(texts):,} texts of up to {longest:,} characters: it may have "
            f"{MAX_TEXTS} of up to {MAX_TEXT:,}",
            name,
        )
    return texts


Body = TypeVar("Body", bound=RequestBody)


def read_body(model: type[Body], body: Mapping[str, Any]) -> Body:
    """The fields of a body. Raises Refused."""
    given = {
        name: value
        for name, value in body.items()
        if value is not None or name in model.model_fields
    }
    for name, reason in _NOT_SERVED.items():
        if name in given:
            raise Refused(f"{name} is not served: {reason}", name, "unsupported_parameter")
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise refused(error, model) from None


def refused(error: ValidationError, model: type[BaseModel]) -> Refused:
    """The first thing that is wrong, by the field that the request calls it."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    param = _FIELDS.get(name, name)
    if first["type"] == "extra_forbidden":
        whole = ".".join(map(str, first["loc"]))
        near = nearest(name, list(model.model_fields)) if whole == name else None
        hint = _INSTEAD.get(whole, f"did you mean {near!r}?" if near else None)
        said = f"unknown field {whole!r:.{SHOWN}}" + (f": {hint}" if hint else "")
        return Refused(said, param, "unknown_parameter")
    if first["type"] == "missing":
        return Refused(f"the field {name!r} is missing", param, "missing_required_parameter")
    said = f"{param} is {first['input']!r:.{SHOWN}}: {in_words(first)}"
    return Refused(said, param, "invalid_value")
