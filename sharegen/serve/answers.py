"""What has come of a request, as OpenAI's objects have it: whole, or in chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sharegen.common.tool_choice import ToolChoice
from sharegen.engine.core.request import Completion, Request, TokenLogprobs
from sharegen.job.recording import requested
from sharegen.results.export.openai import (
    Answerer,
    Spell,
    Usage,
    answered,
    choice,
    failed,
    head,
    put_calls,
    reason_of,
)
from sharegen.results.export.tool_calls import OPEN, calls_in, ends_as, message_calls
from sharegen.results.journal.record import Record
from sharegen.serve.asked import ParsedRequest
from sharegen.serve.text_stream import TextStream
from sharegen.serve.ticket import Grown, News


class ServedAnswer:
    """The answer to one HTTP request, as it becomes known.

    name: of the completion; requests: in the order of the prompts; by: who has drawn it, asked when
    something was drawn: the model may be another one than when it was asked.
    """

    def __init__(
        self,
        asked: ParsedRequest,
        requests: Sequence[Request],
        name: str,
        by: Callable[[], Answerer],
        tokenizer: Any,
        spell: Spell,
    ) -> None:
        self.asked = asked
        self._name, self._by = name, by
        self._tokenizer, self._spell = tokenizer, spell
        self._n = asked.params.n
        self._order = {request.key: place for place, request in enumerate(requests)}
        self._finished: dict[int, Completion] = {}  # by the index of the choice
        self._streams: dict[int, _ChoiceStream] = {}

    def _index(self, key: int, sample: int) -> int:
        return self._order[key] * self._n + sample

    def add(self, finished: Sequence[Completion]) -> None:
        """Samples that have ended."""
        for each in finished:
            self._finished[self._index(each.request.key, each.sample)] = each

    @property
    def is_whole(self) -> bool:
        """Whether all choices are there."""
        return len(self._finished) == len(self._order) * self._n

    @property
    def error(self) -> str | None:
        """Why a choice failed, where one did."""
        return next((e.error for e in self._finished.values() if e.error is not None), None)

    @property
    def drawn_tokens(self) -> int:
        """Tokens of the choices that are there."""
        if self.asked.counts_prompt_alone:
            return 0
        return sum(len(each.token_ids) for each in self._finished.values())

    def body(self) -> dict[str, Any]:
        """The object of an answer that is whole."""
        choices = [self._choice(index) for index in range(len(self._finished))]
        body = head(self.asked.endpoint, self._name, self._by())
        body |= {"choices": choices, "usage": self._usage()}
        if self.asked.metadata is not None:
            body["metadata"] = dict(self.asked.metadata)
        if self.asked.delivery.return_token_ids and self.asked.endpoint == "chat":
            body["prompt_token_ids"] = self.asked.prompts[0]
        return body

    def line(self, custom_id: str) -> dict[str, Any]:
        """The line of a batch's output, of an answer that is whole."""
        if self.error is not None:
            return failed(custom_id, self.error)
        asked = self.asked
        records = [
            _record(self._finished[index], asked.params.logprobs)
            for index in range(len(self._finished))
        ]
        return answered(
            custom_id, asked.endpoint, records, self._prompt_usage(), self._by(), self._spell,
            asked.metadata, asked.tool_choice,
        )  # fmt: skip

    def _usage(self) -> dict[str, Any]:
        return self._prompt_usage().counts(self.drawn_tokens)

    def _prompt_usage(self) -> Usage:
        prompts = sum(map(len, self.asked.prompts))
        firsts = (self._finished[place * self._n] for place in range(len(self._order)))
        return Usage(prompts, sum(first.num_cached_tokens for first in firsts))

    def _choice(self, index: int) -> dict[str, Any]:
        completion, params = self._finished[index], self.asked.params
        record = _record(completion, params.logprobs)
        prompt = self.asked.prompts[index // self._n]
        if self.asked.counts_prompt_alone:
            record = replace(record, completion="", logprobs=record.logprobs and [])
        if self.asked.delivery.echo:
            record = replace(
                record,
                completion=self._text_of(index) + record.completion,
                logprobs=_echoed(completion, prompt, params.logprobs, record.logprobs),
            )
        made = choice(self.asked.endpoint, index, record, self._spell)
        if self.asked.tool_choice is not None:
            put_calls(made, self.asked.tool_choice, f"{self._name[:24]}{index}_")
        made["stop_reason"] = completion.stop_reason
        if self.asked.delivery.return_token_ids:
            made["token_ids"] = [] if self.asked.counts_prompt_alone else completion.token_ids
            if self.asked.endpoint == "text":
                made["prompt_token_ids"] = prompt
        return made

    def _text_of(self, index: int) -> str:
        """The prompt of a choice as text."""
        place = index // self._n
        text = self.asked.texts[place]
        if text is not None:
            return text
        return str(self._tokenizer.decode(self.asked.prompts[place], skip_special_tokens=True))

    # -- in chunks --------------------------------------------------------------------------------

    def chunks(self, news: News) -> list[dict[str, Any]]:
        """What a stream says of news."""
        found = []
        for (key, sample), grown in news.grown.items():
            stream = self._stream(self._index(key, sample))
            found += stream.grown(grown)
        for each in news.finished:
            index = self._index(each.request.key, each.sample)
            found += self._stream(index).ended(each)
        self.add(news.finished)
        return found

    def usage_chunk(self) -> dict[str, Any]:
        """The last chunk, where it is wanted, of an answer that is whole."""
        return self._head() | {"choices": [], "usage": self._usage()}

    def _head(self) -> dict[str, Any]:
        return head(self.asked.endpoint, self._name, self._by(), chunk=True)

    def _stream(self, index: int) -> _ChoiceStream:
        if index not in self._streams:
            prompt = self.asked.prompts[index // self._n]
            echo = self._text_of(index) if self.asked.delivery.echo else None
            name = f"{self._name[:24]}{index}_"
            self._streams[index] = _ChoiceStream(
                self.asked, index, name, prompt, echo, self._head(), self._tokenizer, self._spell
            )
        return self._streams[index]


class _ChoiceStream:
    """One choice of a stream. name: its own, among all choices of all answers. echo: the text that
    comes before it, where that is wanted."""

    def __init__(
        self,
        asked: ParsedRequest,
        index: int,
        name: str,
        prompt: list[int],
        echo: str | None,
        head: dict[str, Any],
        tokenizer: Any,
        spell: Spell,
    ) -> None:
        params = asked.params
        self._asked, self._index, self._name, self._prompt = asked, index, name, prompt
        self._echo, self._head, self._spell = echo, head, spell
        special = not params.skip_special_tokens
        self._text = TextStream(
            tokenizer, prompt, tuple(params.stop), special, _held_back(asked.tool_choice)
        )
        self._offset = 0  # characters before the next token, where offsets are told
        self._tokens = 0
        self._told = False  # whether a chunk had tokens' log-probabilities, with text or without
        self._begun = False

    def grown(self, grown: Grown) -> list[dict[str, Any]]:
        """What more tokens bring, if that can be said already."""
        text = self._text.push(grown.token_ids)
        self._tokens += len(grown.token_ids)
        if not (text or grown.logprobs or self._asked.delivery.return_token_ids):
            return []
        return [*self._beginning(), self._chunk(text, grown)]

    def ended(self, whole: Completion) -> list[dict[str, Any]]:
        """The rest of it, with how it ended."""
        rest = Grown(whole.token_ids[self._tokens :], (whole.logprobs or [])[self._tokens :])
        reason = reason_of(whole.finish_reason)
        begun = self._beginning(whole)
        if self._asked.counts_prompt_alone:
            return [*begun, self._chunk("", Grown(), reason)]
        rest_of_text, calls = self._text.rest(whole.text or ""), []
        if self._asked.tool_choice is not None:
            _, found = calls_in(whole.text or "", self._asked.tool_choice)
            reason = ends_as(reason, self._asked.tool_choice, found)
            calls = message_calls(found, self._name)
            if found:
                is_text = self._asked.tool_choice.kind == "auto"
                rest_of_text = rest_of_text.partition(OPEN)[0] if is_text else ""
        last = self._chunk(rest_of_text, rest, reason)
        if calls:
            last["choices"][0]["delta"]["tool_calls"] = [
                {"index": number, **call} for number, call in enumerate(calls)
            ]
        last["choices"][0]["stop_reason"] = whole.stop_reason
        return [*begun, last]

    def _beginning(self, whole: Completion | None = None) -> list[dict[str, Any]]:
        """The chunk before all others: who speaks, or the prompt."""
        if self._begun:
            return []
        self._begun = True
        if self._asked.endpoint == "chat":
            made = {"index": self._index, "finish_reason": None, "logprobs": None}
            made["delta"] = {"role": "assistant", "content": ""}  # type: ignore[assignment]
            return [self._head | {"choices": [made]}]
        if self._echo is None:
            return []
        return [self._chunk(self._echo, Grown())]

    def _chunk(self, text: str, grown: Grown, reason: str | None = None) -> dict[str, Any]:
        wanted = self._asked.params.logprobs
        logprobs = requested(grown.logprobs, wanted) if grown.logprobs else None
        # Where the text begins, a decoder may leave the space of the first token out.
        is_first = self._offset == 0 and not self._told
        known = text if is_first and logprobs is not None else ""
        self._told = self._told or bool(logprobs)
        record = Record("", 0, None, completion=known, logprobs=logprobs)
        made = choice(self._asked.endpoint, self._index, record, self._spell)
        made["finish_reason"] = reason
        if self._asked.endpoint == "chat":
            del made["message"]
            made["delta"] = {"content": text} if text or reason is None else {}
        else:
            made["text"] = text
            if logprobs is not None:
                offsets = made["logprobs"]["text_offset"]
                made["logprobs"]["text_offset"] = [self._offset + each for each in offsets]
        self._offset += len(text)
        if self._asked.delivery.return_token_ids:
            made["token_ids"] = grown.token_ids
        return self._head | {"choices": [made]}


def _held_back(calls: ToolChoice | None) -> str | None:
    """From where on a stream's text is held back, because it may be a call; "" for all of it."""
    if calls is None:
        return None
    return OPEN if calls.kind == "auto" else ""


def _record(completion: Completion, logprobs: int | None) -> Record:
    """A sample as a journal would have it."""
    return Record(
        "",
        completion.sample,
        None,
        completion=completion.text or "",
        num_tokens=len(completion.token_ids),
        finish_reason=completion.finish_reason,
        logprobs=requested(completion.logprobs, logprobs),
    )


def _echoed(
    completion: Completion, prompt: list[int], wanted: int | None, own: list[Any] | None
) -> list[Any] | None:
    """What the model says of the prompt's tokens, and then of a choice's own."""
    if wanted is None or own is None:
        return None
    entries: Sequence[TokenLogprobs | None] = completion.prompt_logprobs or ()
    known = requested(entries[1:], wanted) or []
    return [[prompt[0], None, None], *known, *own]


as_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode
"""The JSON of an answer, without spaces."""


def event(data: dict[str, Any] | str) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else as_json(data)
    return f"data: {text}\n\n".encode()
