"""The body of an HTTP request -> prompts in tokens, how to draw them, and how to answer.

What is asked is read as in a batch file (`workload/requests.py`); what is here is how the answer is
wanted, which a file has no words for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.common.names import SHOWN
from sharegen.common.tool_choice import ToolChoice
from sharegen.engine.core.request import Request, SamplingParams
from sharegen.errors import DataError, ModelError, RequestError, UsageError
from sharegen.job.engines import sampling_params
from sharegen.prompts import Requests
from sharegen.results.export.openai import Endpoint
from sharegen.serve.faults import Refusal
from sharegen.serve.limits import Limits
from sharegen.serve.tokens import PromptTooLong, Tokens
from sharegen.workload.configuration import Configuration
from sharegen.workload.dataset import read_rows
from sharegen.workload.request_body import Fault, Refused, refused
from sharegen.workload.requests import BatchRequest, RequestedPrompts, asked_by, read_requests

_MAX_TOKENS = ("max_tokens", "max_completion_tokens")


class _StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # OpenAI's padding against who listens: there is none


class Delivery(BaseModel):
    """How the answer is wanted.

    echo: whether the text of the prompt comes before a choice's own. return_token_ids: whether
    token ids come beside texts, by vLLM's names.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    echo: bool | None = None
    return_token_ids: bool | None = None

    @property
    def with_usage(self) -> bool:
        """Whether a stream ends with what it used."""
        return bool(self.stream_options and self.stream_options.include_usage)


@dataclass(frozen=True)
class ParsedRequest:
    """One HTTP request, read.

    prompts: token ids of each, and texts what they are as text where they were given as such.
    counts_prompt_alone: whether nothing is wanted but what the model says of the prompt.
    tool_choice: of a chat whose answer may call functions. lasts: whether the same body asks the
    same at any time.
    """

    endpoint: Endpoint
    prompts: list[list[int]]
    texts: list[str | None]
    params: SamplingParams
    delivery: Delivery
    metadata: Mapping[str, str] | None
    counts_prompt_alone: bool
    tool_choice: ToolChoice | None = None
    lasts: bool = False

    def requests(self, next_key: Callable[[], int]) -> list[Request]:
        """What the engine is asked; samples of a seed are those of `LLM.generate`."""
        made = Requests()
        found = [made.make(next_key(), ids, self.params) for ids in self.prompts]
        if self.counts_prompt_alone:
            found = [replace(request, fills_context=True) for request in found]
        return found


class Reader:
    """Reads bodies. configuration: whose sampling parameters stand where a body says nothing.

    names: of the model, the first its own; context: the most tokens of prompt and output.
    """

    def __init__(
        self,
        configuration: Configuration,
        tokenizer: Any,
        names: tuple[str, ...],
        context: int,
        limits: Limits,
    ) -> None:
        self._configuration = configuration
        self._tokenizer = tokenizer
        self._tokens = Tokens(tokenizer, context)
        self._names = names
        self.context = context
        self._limits = limits

    def read(self, endpoint: Endpoint, body: bytes) -> ParsedRequest:
        """What a body asks. Raises Refusal."""
        try:
            return self._read(endpoint, values_of(body))
        except Refused as error:
            raise _refusal(error.fault) from None
        except (ModelError, RequestError, UsageError) as error:
            raise Refusal(400, str(error)) from None

    def _read(self, endpoint: Endpoint, values: dict[str, Any]) -> ParsedRequest:
        try:
            delivery = Delivery.model_validate(values)
        except ValidationError as error:
            raise refused(error, Delivery) from None
        self._check_name(values.get("model"))
        if values.get("stream_options") is not None and not delivery.stream:
            raise Refused("stream_options: needs stream: true", "stream_options")
        self._check_template(endpoint)
        echo = bool(delivery.echo)
        if echo and endpoint == "chat":
            raise Refused("echo is for /v1/completions", "echo", "unsupported_parameter")
        prompt_alone = echo and values.get("max_tokens") == 0
        body = {name: value for name, value in values.items() if name not in Delivery.model_fields}
        if prompt_alone:
            body["max_tokens"] = 1  # which nobody sees
        asked = asked_by(endpoint, body, self._configuration)
        params, _ = sampling_params(asked.sampling)
        if body.get("seed") is None:  # the server's is no request's own: each draws anew
            params = replace(params, seed=None)
        if echo and params.logprobs is not None:
            if delivery.stream:  # what the model says of a prompt is known with the last token
                raise Refused(
                    "echo with logprobs is not streamed: leave one of the three out",
                    "stream",
                    "unsupported_parameter",
                )
            params = replace(params, prompt_logprobs=params.logprobs)
        return self._prepared(endpoint, asked, params, body, delivery, prompt_alone)

    def _prepared(
        self,
        endpoint: Endpoint,
        asked: RequestedPrompts,
        params: SamplingParams,
        body: Mapping[str, Any],
        delivery: Delivery,
        prompt_alone: bool = False,
    ) -> ParsedRequest:
        """What is asked, in tokens and within the server's bounds."""
        if len(asked.prompts) * params.n > self._limits.choices:
            raise Refused(
                f"{len(asked.prompts) * params.n:,} choices (prompts times n) are more than the "
                f"{self._limits.choices:,} that this server takes in a request (--max-choices)",
                "n",
            )
        try:
            prompts = self._tokens.of(asked.prompts)
        except PromptTooLong as error:
            raise Refused(
                f"{error}: the model's context holds {self.context:,}",
                "prompt",
                "context_length_exceeded",
            ) from None
        is_said = any(body.get(name) is not None for name in _MAX_TOKENS)
        params = self._bounded(params, max(map(len, prompts)) - prompt_alone, is_said)
        texts = [p.content if isinstance(p.content, str) else None for p in asked.prompts]
        metadata = body.get("metadata")
        choice = asked.tool_choice
        return ParsedRequest(
            endpoint, prompts, texts, params, delivery, metadata, prompt_alone, choice,
            lasts=self._tokens.last(asked.prompts),
        )  # fmt: skip

    def line(self, request: BatchRequest) -> ParsedRequest:
        """What a line of a batch asks, drawn with the seed that the command line draws it with.

        Raises Refusal.
        """
        if isinstance(request.asked, Fault):
            raise _refusal(request.asked)
        params, _ = sampling_params(request.asked.sampling)
        try:
            self._check_template(request.endpoint)
            return self._prepared(request.endpoint, request.asked, params, request.body, Delivery())
        except Refused as error:
            raise _refusal(error.fault) from None
        except (ModelError, RequestError, UsageError) as error:
            raise Refusal(400, str(error)) from None

    def batch(self, path: Path, name: str, endpoint: str) -> list[BatchRequest]:
        """The requests of a batch's file. name: what messages call it; endpoint: of all of them.

        Raises DataError where it is none of a batch, or not for this server.
        """
        try:
            rows = read_rows(str(path), None, "").rows
        except DataError as error:
            raise DataError(str(error).replace(f"{path}, ", "").replace(str(path), name)) from None
        if len(rows) > self._limits.batch_requests:
            raise DataError(
                f"the file has {len(rows):,} requests: a batch may have "
                f"{self._limits.batch_requests:,} (too_many_requests)"
            )
        own = [replace(row, where=row.where.rpartition(", ")[2]) for row in rows]
        requests = read_requests(own, self._configuration)
        wanted = "chat" if endpoint == "/v1/chat/completions" else "text"
        other = next((each for each in requests if each.endpoint != wanted), None)
        if other is not None:
            raise DataError(
                f"{other.where}: asks another endpoint than {endpoint}, which is the batch's "
                "(url_mismatch)"
            )
        named = next((each for each in requests if each.model not in (None, *self._names)), None)
        if named is not None:
            raise DataError(
                f"{named.where}: the model {named.model!r:.{SHOWN}} is not served here: "
                f"{self._names[0]!r} is (model_not_found)"
            )
        return requests

    def settings(self, fingerprint: str) -> str:
        """A hash of what decides a line's answer beside the line. fingerprint: of the model."""
        own = self._configuration
        said = [
            fingerprint,
            self._limits.output_tokens,
            own.sampling.model_dump(mode="json"),
            own.chat.model_dump(mode="json"),
        ]
        return blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()

    def _check_template(self, endpoint: Endpoint) -> None:
        if endpoint == "chat" and not getattr(self._tokenizer, "chat_template", None):
            raise Refused("the model has no chat template: ask /v1/completions", "messages")

    def _check_name(self, name: Any) -> None:
        if isinstance(name, str) and name not in self._names:
            raise Refusal(
                404,
                f"the model {name!r:.{SHOWN}} is not served here: {self._names[0]!r} is",
                "model",
                "model_not_found",
            )

    def _bounded(self, params: SamplingParams, longest: int, is_said: bool) -> SamplingParams:
        """The parameters with no more tokens than the server draws.

        longest: tokens of the longest prompt; is_said: whether the body says how many it wants.
        Raises Refused where these are too many.
        """
        most, wanted = self._limits.output_tokens, params.max_tokens
        if most is not None and wanted is not None and is_said and wanted > most:
            raise Refused(
                f"max_tokens is {wanted:,}: this server draws up to {most:,} (--max-output-tokens)",
                "max_tokens",
            )
        room = self.context - longest
        if room < 1 or (is_said and wanted is not None and wanted > room):
            said = f" and max_tokens is {wanted:,}" if is_said and wanted is not None else ""
            raise Refused(
                f"the prompt has {longest:,} tokens{said}: the model's context holds "
                f"{self.context:,}",
                "max_tokens" if room >= 1 else "prompt",
                "context_length_exceeded",
            )
        if most is None or (wanted is not None and wanted <= most):
            return params
        return replace(params, max_tokens=most, min_tokens=min(params.min_tokens, most))


def _refusal(fault: Fault) -> Refusal:
    return Refusal(400, fault.message, fault.param, fault.code)


def values_of(body: bytes) -> dict[str, Any]:
    """The object of a body. Raises Refused."""
    if not body.strip():
        raise Refused("the request has no body: a JSON object is expected")
    try:
        values = json_values.parse(body)
    except JsonError as error:
        raise Refused(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(values, dict):
        raise Refused(f"the body is JSON of type {type(values).__name__}: an object is expected")
    return values
