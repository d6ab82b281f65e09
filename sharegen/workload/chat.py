"""A conversation -> the text that the model was trained on, by its tokenizer's chat template.

The template came with the model's files: an untrusted program, which a process with limits runs
through transformers' own code.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from sharegen.common import confined
from sharegen.errors import ModelError
from sharegen.workload.clock import Clock
from sharegen.workload.conversation import PLAIN, ChatOptions
from sharegen.workload.template import FAILURES, MAX_TEXT, said

Turns = Sequence[Mapping[str, Any]]


class ChatOverrun(ModelError):
    """The template takes more time or memory than it may: the next chat will hardly do better."""


def chat_text(
    tokenizer: PreTrainedTokenizerBase,
    turns: Turns,
    options: ChatOptions = PLAIN,
    clock: Clock | None = None,
) -> str:
    """The text of a conversation up to where the model answers.

    clock: what the template hears the time to be, by default now. A tokenizer's class with code of
    its own in the place of a template hears its own.

    Raises ModelError when the template refuses the conversation or fails, ChatOverrun when it goes
    over its limits.
    """
    if type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template:
        return _applied(
            tokenizer, turns, options
        )  # no template: code of a class that was chosen to run
    try:
        template = tokenizer.get_chat_template(tools=options.tools)  # type: ignore[arg-type]
        known = _known_roles(turns, template)
        clock = clock or Clock.now()
        tokens = tokenizer.special_tokens_map
        text, formats = confined.call(render, template, tokens, known, options, clock.moment)
        clock.note(formats)
        return text
    except ValueError as error:  # several templates, and none is the default
        raise ModelError(f"the tokenizer's chat template cannot be used: {said(error)}") from None
    except confined.Exceeded as error:
        raise ChatOverrun(f"the tokenizer's chat template {error}") from None


def _known_roles(turns: Turns, template: str) -> Turns:
    """A developer's turn is the system's to a template that does not know developers."""
    if "developer" in template:
        return turns
    return [{**turn, "role": "system"} if turn["role"] == "developer" else turn for turn in turns]


def render(
    template: str,
    special_tokens: Mapping[str, str],
    turns: Turns,
    options: ChatOptions,
    moment: datetime,
) -> tuple[str, set[str]]:
    """What a tokenizer with this template and these tokens makes of a conversation at a moment.

    With it the formats in which the template wrote the time.
    """
    random.seed(repr(list(turns)))  # a template that draws at random draws the same for a chat
    with _stopped(moment) as formats:
        text = _applied(_StandIn(template, special_tokens), turns, options)
    if len(text) > MAX_TEXT:
        raise ModelError(f"the tokenizer's chat template gives more than {MAX_TEXT:,} characters")
    return text, formats


@contextmanager
def _stopped(moment: datetime) -> Iterator[set[str]]:
    """Let transformers' `strftime_now` write this moment; the formats that it was asked for."""
    clock, stopped = chat_template_utils.datetime, _StoppedClock(moment)
    chat_template_utils.datetime = stopped  # type: ignore[assignment,misc]
    try:
        yield stopped.formats
    finally:
        chat_template_utils.datetime = clock  # type: ignore[misc]


class _StoppedClock:
    """As much of `datetime` as transformers gives templates, always at one moment."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment
        self.formats: set[str] = set()

    def now(self) -> _StoppedClock:
        return self

    def strftime(self, format: str) -> str:
        self.formats.add(format)
        return self._moment.strftime(format)


class _StandIn:
    """As much of a tokenizer as a chat template needs."""

    apply_chat_template = PreTrainedTokenizerBase.apply_chat_template

    def __init__(self, template: str, special_tokens_map: Mapping[str, str]) -> None:
        self._template = template
        self.special_tokens_map = special_tokens_map

    def get_chat_template(self, chat_template: None = None, tools: None = None) -> str:
        return self._template


def _applied(
    tokenizer: PreTrainedTokenizerBase | _StandIn, turns: Turns, options: ChatOptions
) -> str:
    try:
        text = tokenizer.apply_chat_template(  # type: ignore[misc]
            list(turns),  # type: ignore[arg-type]
            tools=None if options.tools is None else list(map(dict, options.tools)),
            tokenize=False,
            add_generation_prompt=options.begins_turn,
            continue_final_message=options.continue_final_message,
            **options.template_kwargs,
        )
    except FAILURES as error:
        raise ModelError(
            f"the conversation is refused by the tokenizer's chat template: {said(error)}"
        ) from None
    assert isinstance(text, str)
    return text
