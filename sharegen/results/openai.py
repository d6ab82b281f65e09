"""Answers in the shape of OpenAI's batch output: a line a request, with a completion or an error.

Source: the API reference's objects "request output", "chat completion" and "completion (legacy)".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from sharegen.common import json_values
from sharegen.common.json_values import JsonError
from sharegen.results.record import Record

Endpoint = Literal["chat", "text"]


@dataclass(frozen=True)
class Usage:
    """Prompt tokens of a request, and those of them that other requests' prompts share."""

    prompt_tokens: int
    cached_tokens: int


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
    spell: Callable[[int], str],
    metadata: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The line of a request whose choices are all there, in their order.

    spell: a token's text, by its id.
    """
    drawn = sum(record.num_tokens for record in records)
    body: dict[str, Any] = {
        "id": f"{_PREFIX[endpoint]}-{_digest(by.fingerprint, custom_id)}",
        "object": _OBJECT[endpoint],
        "created": by.created,
        "model": by.model,
        "choices": [
            _choice(endpoint, index, record, spell) for index, record in enumerate(records)
        ],
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": drawn,
            "total_tokens": usage.prompt_tokens + drawn,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
        "system_fingerprint": f"fp_{by.fingerprint[:10]}",
    }
    if metadata is not None:
        body["metadata"] = dict(metadata)
    return _line(custom_id, 200, body)


def refused(
    custom_id: str, message: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The line of a request that cannot be asked."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return _line(custom_id, 400, {"error": error})


def failed(custom_id: str, message: str) -> dict[str, Any]:
    """The line of a request that was asked, and of which a sample failed."""
    error = {"message": message, "type": "server_error", "param": None, "code": None}
    return _line(custom_id, 500, {"error": error})


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


def _choice(
    endpoint: Endpoint, index: int, record: Record, spell: Callable[[int], str]
) -> dict[str, Any]:
    reason = _ENDS.get(str(record.finish_reason), "stop")
    choice: dict[str, Any] = {"index": index, "finish_reason": reason, "logprobs": None}
    found = record.logprobs
    if endpoint == "text":
        logprobs = None if found is None else _text_logprobs(found, spell)
        return {**choice, "logprobs": logprobs, "text": record.completion}
    if found is not None:
        content = [
            {**_logprob(token, value, spell), "top_logprobs": [
                _logprob(int(other), of_other, spell) for other, of_other in top.items()
            ]}
            for token, value, top in found
        ]  # fmt: skip
        choice["logprobs"] = {"content": content, "refusal": None}
    message = {"role": "assistant", "content": record.completion, "refusal": None}
    return {**choice, "message": message}


_UNLIKELY = -9999.0  # OpenAI's own word for what is not finite


def _logprob(token: int, value: float | None, spell: Callable[[int], str]) -> dict[str, Any]:
    """A token's entry; a piece of a character is no text, and its bytes are not told."""
    text = spell(token)
    whole = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "bytes": whole, "logprob": _UNLIKELY if value is None else value}


def _text_logprobs(
    found: Sequence[Sequence[Any]], spell: Callable[[int], str]
) -> dict[str, list[Any]]:
    """The four lists of the legacy endpoint; of tokens that read alike the likeliest counts.

    The token that was drawn is among the likeliest, too, behind them where it is none of them.
    """
    texts = [spell(token) for token, _, _ in found]
    tops: list[dict[str, float]] = []
    for drawn, its, top in found:
        best: dict[str, float] = {}
        for token, value in [*top.items(), (drawn, its)]:
            best.setdefault(spell(int(token)), _UNLIKELY if value is None else value)
        tops.append(best)
    return {
        "tokens": texts,
        "token_logprobs": [_UNLIKELY if value is None else value for _, value, _ in found],
        "top_logprobs": tops,
        "text_offset": [0, *accumulate(map(len, texts))][: len(texts)],
    }


def _digest(*parts: str) -> str:
    """A name that is the same whenever the file is written again."""
    text = json.dumps(parts)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
