"""Answers in the shape of OpenAI's batch output: a line a request, with a completion or an error.

Source: the API reference's objects "request output", "chat completion" and "completion (legacy)".
"""

from __future__ import annotations

import hashlib
import json
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.common.tool_choice import ToolChoice
from sharegen.results.export.tool_calls import calls_in, ends_as, message_calls
from sharegen.results.journal.record import Record

Endpoint = Literal["chat", "text"]

Spell = Callable[[int], bytes | None]
"""The UTF-8 of a token, by its id; None where nobody knows it."""


@dataclass(frozen=True)
class Usage:
    """Prompt tokens of a request, and those of them that other requests' prompts share."""

    prompt_tokens: int
    cached_tokens: int

    def counts(self, drawn: int) -> dict[str, Any]:
        """The object "usage" of a completion that has so many tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": drawn,
            "total_tokens": self.prompt_tokens + drawn,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True)
class Answerer:
    """Who answers, and when: model: its name; fingerprint: of its weights; created: in seconds."""

    model: str
    fingerprint: str
    created: int


def answered(
    custom_id: str,
    endpoint: Endpoint,
    records: Sequence[Record],
    usage: Usage,
    by: Answerer,
    spell: Spell,
    metadata: Mapping[str, str] | None = None,
    tool_choice: ToolChoice | None = None,
) -> dict[str, Any]:
    """The line of a request whose choices are all there, in their order.

    spell: the bytes of tokens. tool_choice: of a chat that may call functions.
    """
    drawn = sum(record.num_tokens for record in records)
    choices = [choice(endpoint, index, record, spell) for index, record in enumerate(records)]
    if tool_choice is not None:
        for made in choices:
            put_calls(made, tool_choice, _digest(by.fingerprint, custom_id, str(made["index"])))
    body = head(endpoint, _digest(by.fingerprint, custom_id), by)
    body |= {"choices": choices, "usage": usage.counts(drawn)}
    if metadata is not None:
        body["metadata"] = dict(metadata)
    return _line(custom_id, 200, body)


def head(endpoint: Endpoint, name: str, by: Answerer, chunk: bool = False) -> dict[str, Any]:
    """What a completion has beside its choices and usage, or each chunk of one that is streamed.

    name: its own, among all completions.
    """
    is_chunk_of_chat = chunk and endpoint == "chat"
    return {
        "id": f"{_PREFIX[endpoint]}-{name}",
        "object": "chat.completion.chunk" if is_chunk_of_chat else _OBJECT[endpoint],
        "created": by.created,
        "model": by.model,
        "system_fingerprint": f"fp_{by.fingerprint[:10]}",
    }


def refused(
    custom_id: str, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The line of a request that cannot be asked."""
    return _line(custom_id, 400, error_of(message, "invalid_request_error", param, code))


def failed(custom_id: str, message: str) -> dict[str, Any]:
    """The line of a request that was asked, and of which a sample failed."""
    return _line(custom_id, 500, error_of(message, "server_error"))


def error_of(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The body of an answer that is an error; kind: its type, by OpenAI's name."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def as_lines(lines: Sequence[Mapping[str, Any]]) -> bytes:
    """The file's content; ASCII, so that any reader tells its lines apart."""
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def is_answers(path: Path) -> bool:
    """Whether a file is one of such lines, by its first; an empty one may become one."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            first = file.readline()
        line = json_values.parse(first) if first else {"custom_id": "", "response": {}}
    except (OSError, JsonError):
        return False
    return isinstance(line, dict) and {"custom_id", "response"} <= line.keys()


_PREFIX = {"chat": "chatcmpl", "text": "cmpl"}
_OBJECT = {"chat": "chat.completion", "text": "text_completion"}
_ENDS = {"length": "length", "context": "length"}  # of the finish reasons; all others stop


def _line(custom_id: str, status: int, body: dict[str, Any]) -> dict[str, Any]:
    name = _digest(custom_id)
    response = {"status_code": status, "request_id": f"req_{name}", "body": body}
    return {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": None}


def reason_of(finish_reason: str | None) -> str:
    """Why a choice ended, in OpenAI's words."""
    return _ENDS.get(str(finish_reason), "stop")


def choice(endpoint: Endpoint, index: int, record: Record, spell: Spell) -> dict[str, Any]:
    """One choice of a completion, at its index.

    Its log-probabilities may begin with those of the prompt, the first of which has none.
    """
    made: dict[str, Any] = {"index": index, "finish_reason": reason_of(record.finish_reason)}
    made["logprobs"] = None
    found = record.logprobs
    said = _said(record, spell)
    if endpoint == "text":
        logprobs = None if found is None else _text_logprobs(found, said, spell)
        return {**made, "logprobs": logprobs, "text": record.completion}
    if found is not None:
        content = [
            {**_logprob(own, value), "top_logprobs": [
                _logprob(spell(int(other)), of_other) for other, of_other in top.items()
            ]}
            for own, (_, value, top) in zip(said, found, strict=True)
        ]  # fmt: skip
        made["logprobs"] = {"content": content, "refusal": None}
    message = {"role": "assistant", "content": record.completion, "refusal": None}
    return {**made, "message": message}


def put_calls(made: dict[str, Any], choice: ToolChoice, name: str) -> None:
    """Turn what is called in a chat's choice into its calls. name: of the choice, among all."""
    message = made["message"]
    content, calls = calls_in(message["content"], choice)
    made["finish_reason"] = ends_as(made["finish_reason"], choice, calls)
    if calls:
        message |= {"content": content, "tool_calls": message_calls(calls, name)}


_UNLIKELY = -9999.0  # OpenAI's own word for what is not finite
_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


def _said(record: Record, spell: Spell) -> list[bytes | None]:
    """The bytes of the tokens that were drawn, where their log-probabilities are wanted."""
    said = [spell(token) for token, *_ in record.logprobs or ()]
    if said and (said[0] or b"")[:1] == b" " and record.completion[:1] not in ("", " "):
        said[0] = (said[0] or b"")[1:]  # nothing comes before it, and decoders begin with a word
    return said


def _logprob(said: bytes | None, value: float | None) -> dict[str, Any]:
    """A token's entry."""
    found = {"token": _text(said), "bytes": None if said is None else list(said)}
    return {**found, "logprob": _UNLIKELY if value is None else value}


def _text(said: bytes | None) -> str:
    """A token's text; bytes that are no character by themselves are written as OpenAI does."""
    return _UNKNOWN if said is None else said.decode(errors="backslashreplace")


def _text_logprobs(
    found: Sequence[Sequence[Any]], said: Sequence[bytes | None], spell: Spell
) -> dict[str, list[Any]]:
    """The four lists of the legacy endpoint.

    The token that was drawn is among the likeliest, too, behind them where it is none of them.
    """
    return {
        "tokens": [_legacy_text(each) for each in said],
        "token_logprobs": [
            None if top is None else _UNLIKELY if value is None else value
            for _, value, top in found
        ],
        "top_logprobs": [
            _legacy_top(own, each, spell) for own, each in zip(said, found, strict=True)
        ],
        "text_offset": _offsets(said),
    }


def _legacy_top(said: bytes | None, entry: Sequence[Any], spell: Spell) -> dict[str, float] | None:
    """Return the log-probabilities by text, the likeliest first; of tokens that read alike, the
    further ones by their ids.

    said: the bytes of the one that was drawn. None for a token that nothing comes before.
    """
    drawn, its, top = entry
    if top is None:
        return None
    values = {int(token): value for token, value in top.items()}
    values.setdefault(drawn, its)
    found: dict[str, float] = {}
    for token, value in values.items():
        text = _legacy_text(said if token == drawn else spell(token))
        name = f"token_id:{token}" if text in found else text
        found[name] = _UNLIKELY if value is None else value
    return found


def _legacy_text(said: bytes | None) -> str:
    """Return the text as `_text` does, with OpenAI's mark before what is not text."""
    try:
        return _UNKNOWN if said is None else said.decode()
    except UnicodeDecodeError:
        return f"bytes:{_text(said)}"


def _offsets(said: Sequence[bytes | None]) -> list[int]:
    """Where each token begins in the text, in characters; inside one: where that begins."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    offsets, length = [], 0
    for each in said:
        offsets.append(length)
        length += len(decoder.decode(_UNKNOWN.encode() if each is None else each))
    return offsets


def _digest(*parts: str) -> str:
    """A name that is the same whenever the file is written again."""
    text = json.dumps(parts)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
