"""Lines of an OpenAI batch file -> what each asks: prompts, and sampling parameters of its own.

As at OpenAI, the file is refused as a whole, before anything is computed, where a line is none of
a batch: it has no custom_id, or another line's, or names a method or endpoint that is not served.
What is wrong within a request's body is that request's own answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sharegen.common.grammar import library
from sharegen.common.names import SHOWN
from sharegen.common.tool_choice import ToolChoice
from sharegen.errors import DataError, UsageError
from sharegen.workload.configuration import Configuration, check_structured
from sharegen.workload.conversation import ChatOptions, conversation, kwargs_of, tools_of
from sharegen.workload.dataset import Row
from sharegen.workload.prompt import Prompt
from sharegen.workload.request_body import (
    MAX_CHOICES,
    ChatBody,
    Fault,
    Refused,
    RequestBody,
    TextBody,
    read_body,
    refused,
)
from sharegen.workload.sampling_section import Sampling
from sharegen.workload.template import RenderError, half_character
from sharegen.workload.tool_choice import schema_of, tool_choice_of

_MAX_TOKEN_ID = 2**31 - 1
_TEXT_TOKENS = 16  # of completions that say nothing of it, as at OpenAI; chats have no such bound


@dataclass(frozen=True)
class RequestedPrompts:
    """What a body asks: its prompts, with one set of sampling parameters for all.

    tool_choice: of a chat whose answer may call functions.
    """

    prompts: tuple[Prompt, ...]
    sampling: Sampling
    tool_choice: ToolChoice | None = None


@dataclass(frozen=True)
class BatchRequest:
    """One line of a batch file.

    where: the line. asked: the prompts and parameters, or why there are none. body: as the line
    has it.
    """

    custom_id: str
    where: str
    endpoint: Literal["chat", "text"]
    asked: RequestedPrompts | Fault
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
        fault = refused(error, _Line).fault
        raise DataError(f"{row.where}: {fault.message}: {_ADVICE[str(fault.param)]}") from None
    endpoint: Literal["chat", "text"] = "chat" if line.url == "/v1/chat/completions" else "text"
    asked: RequestedPrompts | Fault
    try:
        asked = asked_by(endpoint, line.body, configuration)
    except Refused as refusal:
        asked = refusal.fault
    return BatchRequest(line.custom_id, row.where, endpoint, asked, line.body)


def asked_by(
    endpoint: Literal["chat", "text"], body: Mapping[str, Any], configuration: Configuration
) -> RequestedPrompts:
    """What the body of a request to an endpoint asks. Raises Refused."""
    if endpoint == "chat":
        return _chat(read_body(ChatBody, body), configuration)
    return _text(read_body(TextBody, body), configuration)


_ADVICE = {
    "custom_id": "each line has a text of its own by which its answer is found",
    "method": "requests are sent by POST (invalid_method)",
    "url": "there are /v1/chat/completions and /v1/completions (url_mismatch)",
    "body": "the request itself, a JSON object",
}


def _chat(body: ChatBody, configuration: Configuration) -> RequestedPrompts:
    own = configuration.chat
    turns = _part("messages", conversation, body.messages)
    kwargs = _part("chat_template_kwargs", kwargs_of, body.chat_template_kwargs or {})
    tools = None
    if "none" not in (body.tool_choice, body.function_call):
        tools = _part("tools", tools_of, body.told_tools or own.tools)
    choice = tool_choice_of(body.tool_choice, tools)
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
    schema = None
    if choice is not None:
        schema = schema_of(choice, tools or (), body.parallel_tool_calls is not False)
    return RequestedPrompts((prompt,), _sampling(body, configuration, schema), choice)


def _part(name: str, read: Callable[[str, Any], Any], value: Any) -> Any:
    """A field of a body, as it is read in a row; what is wrong is that field's."""
    try:
        return read(name, value)
    except RenderError as error:
        raise Refused(str(error), name) from None


def _text(body: TextBody, configuration: Configuration) -> RequestedPrompts:
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
            f"{len(prompts) * sampling.samples:,} choices (prompts times n) are more than "
            f"{MAX_CHOICES:,}: make it several requests",
            "prompt",
        )
    return RequestedPrompts(tuple(prompts), sampling)


def _prompt(value: Any) -> Prompt:
    """A text, or token ids."""
    if not len(value):
        raise Refused("a prompt is empty: it needs at least one token", "prompt")
    if isinstance(value, str):
        if half_character(value) is not None:
            raise Refused("a prompt is not text: it holds half of a character", "prompt")
        return Prompt(value, value)
    if not all(0 <= token <= _MAX_TOKEN_ID for token in value):
        raise Refused("a prompt holds what is not a token id", "prompt")
    prompt = Prompt(tuple(value), "")
    return replace(prompt, own=str(prompt))


def _sampling(
    body: RequestBody, configuration: Configuration, calls: Mapping[str, Any] | None = None
) -> Sampling:
    """The job's sampling parameters with the request's on top. calls: the schema of calls of
    functions that the answer has to be."""
    values = configuration.sampling.model_dump()
    if isinstance(body, TextBody) and values["max_tokens"] is None:
        values["max_tokens"] = _TEXT_TOKENS
    given = body.given
    if calls is not None:
        if given.get("structured_outputs") is not None:
            raise Refused(
                "a call of a tool has a form of its own: leave out response_format and "
                "structured_outputs, or let tool_choice be auto",
                "tool_choice",
            )
        given["structured_outputs"] = {"json": calls}
    try:
        sampling = Sampling.model_validate(values | given)
    except ValidationError as error:
        raise refused(error, Sampling) from None
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise Refused(
            f"min_tokens is {sampling.min_tokens}: max_tokens, {sampling.max_tokens}, is less",
            "min_tokens",
        )
    if sampling.structured_outputs is not None:
        library()  # without which no line could be answered
        param = "structured_outputs" if body.response_format is None else "response_format"
        param = param if calls is None else "tools"
        try:
            check_structured(sampling)
        except UsageError as error:
            raise Refused(str(error), param) from None
    return sampling
