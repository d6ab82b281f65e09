"""Lines of an OpenAI batch file -> what each asks: prompts, and sampling parameters of its own.

As at OpenAI, the file is refused as a whole, before anything is computed, where a line is none of
a batch: it has no custom_id, or another line's, or names a method or endpoint that is not served.
What is wrong within a request's body is that request's own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sharegen.common.names import SHOWN, nearest
from sharegen.common.structured import from_response_format, library
from sharegen.common.wrong_value import in_words
from sharegen.errors import DataError, UsageError
from sharegen.workload.configuration import Configuration, check_structured
from sharegen.workload.conversation import ChatOptions, conversation, kwargs_of, tools_of
from sharegen.workload.dataset import Row
from sharegen.workload.prompt import Prompt
from sharegen.workload.sampling import Sampling
from sharegen.workload.template import RenderError, half_character

_MAX_TOKEN_ID = 2**31 - 1

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


@dataclass(frozen=True)
class Asked:
    """What a body asks: its prompts, with one set of sampling parameters for all."""

    prompts: tuple[Prompt, ...]
    sampling: Sampling


@dataclass(frozen=True)
class BatchRequest:
    """One line of a batch file.

    where: the line. asked: the prompts and parameters, or why there are none. body: as the line
    has it.
    """

    custom_id: str
    where: str
    endpoint: Literal["chat", "text"]
    asked: Asked | Fault
    body: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        """The name that it asks for."""
        name = self.body.get("model")
        return name if isinstance(name, str) else None

    @property
    def metadata(self) -> Mapping[str, str] | None:
        """Labels that go into its answer."""
        return self.body.get("metadata")

    @property
    def problem_ids(self) -> list[str]:
        """What the journal calls its prompts."""
        if isinstance(self.asked, Fault) or len(self.asked.prompts) == 1:
            return [self.custom_id]
        return [f"{self.custom_id}[{place}]" for place in range(len(self.asked.prompts))]


class _Line(BaseModel):
    """The fields around a request's body."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    custom_id: Annotated[str, Field(min_length=1)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any]


class _Body(BaseModel):
    """What bodies of both endpoints may hold; null is a field that is not there."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: Any = None
    seed: int | None = None
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


_SAMPLING = sorted(_Body.model_fields.keys() & Sampling.model_fields.keys())
_FIELDS = {"samples": "n"}  # where the words of a recipe differ
_INSTEAD = dict.fromkeys(
    ("guided_json", "guided_regex", "guided_choice", "guided_grammar"), "use structured_outputs"
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
_TEXT_TOKENS = 16  # of completions that say nothing of it, as at OpenAI; chats have no such bound


class _ChatBody(_Body):
    messages: list[Any]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=_MOST_LOGPROBS)] | None = None
    tools: list[Any] | None = None
    tool_choice: Literal["none", "auto"] | None = None
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
        """The tools that are to be told to the model, under either of their names."""
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


class _TextBody(_Body):
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


def read_requests(rows: Iterable[Row], configuration: Configuration) -> list[BatchRequest]:
    """The requests of a file. Raises DataError where a line is none of a batch."""
    requests = [_request(row, configuration) for row in rows]
    seen: dict[str, str] = {}
    for request in requests:
        first = seen.setdefault(request.custom_id, request.where)
        if first is not request.where:
            raise DataError(
                f"{request.where}: the custom_id {request.custom_id!r:.{SHOWN}} is that of "
                f"{first}, too: each request has one of its own (duplicate_custom_id)"
            )
    models: dict[str, str] = {}
    for request in requests:
        if request.model is not None:
            models.setdefault(request.model, request.where)
    if len(models) > 1:
        (one, _), (other, where), *_ = models.items()
        raise DataError(
            f"{where}: asks for the model {other!r:.{SHOWN}}, and others for {one!r:.{SHOWN}}: a "
            "batch is answered by one model: make it a file for each (model_mismatch)"
        )
    return requests


def _request(row: Row, configuration: Configuration) -> BatchRequest:
    if row.fault is not None:
        raise DataError(f"{row.where}: {row.fault} (invalid_json_line)")
    try:
        line = _Line.model_validate(row.values)
    except ValidationError as error:
        fault = _refused(error, _Line).fault
        raise DataError(f"{row.where}: {fault.message}: {_ADVICE[str(fault.param)]}") from None
    endpoint: Literal["chat", "text"] = "chat" if line.url == "/v1/chat/completions" else "text"
    asked: Asked | Fault
    try:
        if endpoint == "chat":
            asked = _chat(_validated(_ChatBody, line.body), configuration)
        else:
            asked = _text(_validated(_TextBody, line.body), configuration)
    except Refused as refused:
        asked = refused.fault
    return BatchRequest(line.custom_id, row.where, endpoint, asked, line.body)


_ADVICE = {
    "custom_id": "each line has a text of its own by which its answer is found",
    "method": "requests are sent by POST (invalid_method)",
    "url": "there are /v1/chat/completions and /v1/completions (url_mismatch)",
    "body": "the request itself, a JSON object",
}


def _chat(body: _ChatBody, configuration: Configuration) -> Asked:
    own = configuration.chat
    turns = _part("messages", conversation, body.messages)
    kwargs = _part("chat_template_kwargs", kwargs_of, body.chat_template_kwargs or {})
    tools = None
    if "none" not in (body.tool_choice, body.function_call):
        tools = _part("tools", tools_of, body.told_tools or own.tools)
    begins, goes_on = body.add_generation_prompt, body.continue_final_message
    if begins is None and goes_on is None:
        begins, goes_on = own.add_generation_prompt, own.continue_final_message
    if begins and goes_on:
        raise Refused(
            "add_generation_prompt and continue_final_message: set one of them",
            "continue_final_message",
        )
    options = ChatOptions(tools, {**own.template_kwargs, **kwargs}, begins, bool(goes_on))
    try:
        options.check(turns)
    except RenderError as error:
        raise Refused(str(error), "messages") from None
    prompt = Prompt(turns, turns[-1].get("content", ""), options)
    return Asked((prompt,), _sampling(body, configuration))


def _part(name: str, read: Callable[[str, Any], Any], value: Any) -> Any:
    """A field of a body, as it is read in a row; what is wrong is that field's."""
    try:
        return read(name, value)
    except RenderError as error:
        raise Refused(str(error), name) from None


def _text(body: _TextBody, configuration: Configuration) -> Asked:
    given = body.prompt
    if isinstance(given, str):
        prompts = [_prompt(given)]
    elif not given:
        raise Refused("prompt is an empty list", "prompt")
    elif isinstance(given[0], int):
        prompts = [_prompt(given)]
    else:
        prompts = [_prompt(one) for one in given]
    sampling = _sampling(body, configuration)
    if len(prompts) * sampling.samples > MAX_CHOICES:
        raise Refused(
            f"{len(prompts):,} prompts with {sampling.samples:,} choices each are more than "
            f"{MAX_CHOICES:,}: make it several requests",
            "prompt",
        )
    return Asked(tuple(prompts), sampling)


def _prompt(value: Any) -> Prompt:
    """A text, or token ids."""
    if not len(value):
        raise Refused("a prompt is empty: it needs at least one token", "prompt")
    if isinstance(value, str):
        if half_character(value) is not None:
            raise Refused("a prompt is no text: it holds half of a character", "prompt")
        return Prompt(value, value)
    if not all(0 <= token <= _MAX_TOKEN_ID for token in value):
        raise Refused("a prompt holds what is no token id", "prompt")
    prompt = Prompt(tuple(value), "")
    return replace(prompt, own=str(prompt))


def _sampling(body: _Body, configuration: Configuration) -> Sampling:
    """The job's sampling parameters with the request's on top."""
    values = configuration.sampling.model_dump()
    if isinstance(body, _TextBody) and values["max_tokens"] is None:
        values["max_tokens"] = _TEXT_TOKENS
    try:
        sampling = Sampling.model_validate(values | body.given)
    except ValidationError as error:
        raise _refused(error, Sampling) from None
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise Refused(
            f"min_tokens is {sampling.min_tokens}: max_tokens, {sampling.max_tokens}, is less",
            "min_tokens",
        )
    if sampling.structured_outputs is not None:
        library()  # without which no line could be answered
        param = "structured_outputs" if body.response_format is None else "response_format"
        try:
            check_structured(sampling)
        except UsageError as error:
            raise Refused(str(error), param) from None
    return sampling


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


Body = TypeVar("Body", bound=_Body)


def _validated(model: type[Body], body: Mapping[str, Any]) -> Body:
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
        raise _refused(error, model) from None


def _refused(error: ValidationError, model: type[BaseModel]) -> Refused:
    """The first thing that is wrong, by the field that the request calls it."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    param = _FIELDS.get(name, name)
    if first["type"] == "extra_forbidden":
        near = nearest(name, list(model.model_fields))
        hint = _INSTEAD.get(name, f"did you mean {near!r}?" if near else None)
        said = f"unknown field {name!r:.{SHOWN}}" + (f": {hint}" if hint else "")
        return Refused(said, param, "unknown_parameter")
    if first["type"] == "missing":
        return Refused(f"the field {name!r} is missing", param, "missing_required_parameter")
    said = f"{param} is {first['input']!r:.{SHOWN}}: {in_words(first)}"
    return Refused(said, param, "invalid_value")
