"""Prompts as token ids: what is asked again, as groups of samples are, is tokenised once."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from sharegen.errors import ModelError
from sharegen.workload.clock import Clock
from sharegen.workload.prompt import Prompt, text_of, token_ids
from sharegen.workload.shared_text import SharedHeads
from sharegen.workload.text_length import TextLength

_MOST_TOKENS = 1 << 20
"""That are remembered, with their texts; the least recently asked are forgotten first."""

_MOST_SPELT = 64
"""Characters of a prompt for each of its tokens: where a template leaves more out (tools, say), the
prompt is not remembered, so that what is remembered is no larger than the tokens say."""


class PromptTooLong(ModelError):
    """A prompt surely has more tokens than the context."""


class Tokens:
    """The token ids of prompts, under one tokenizer. Several threads may ask.

    context: the most tokens that a prompt may have.
    """

    def __init__(self, tokenizer: Any, context: int) -> None:
        self._tokenizer = tokenizer
        self._context = context
        self._lengths = TextLength(tokenizer)
        self._heads = SharedHeads()
        self._known: OrderedDict[str, list[int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()  # of what is known

    def of(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Those of each prompt. Raises the first ModelError of a chat that has none, and
        PromptTooLong."""
        return [self._of(prompt) for prompt in prompts]

    def last(self, prompts: Sequence[Prompt]) -> bool:
        """Whether prompts that were asked are the same token ids at any time, as far as is known.

        Those of a template that writes the time are not.
        """
        with self._lock:
            return all(isinstance(p.content, tuple) or _name(p) in self._known for p in prompts)

    def _of(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt.content, tuple):
            return list(prompt.content)
        name = _name(prompt)
        with self._lock:
            known = self._known.get(name)
            if known is not None:
                self._known.move_to_end(name)
                return known
        clock = Clock.now()
        text = text_of(prompt, self._tokenizer, clock)
        if self._lengths.is_over(text, self._context, self._encoded):
            raise PromptTooLong(f"the prompt has more than {self._context:,} tokens")
        begin = not prompt.is_chat
        [ids] = map(list, token_ids([text], self._tokenizer, begin, share=self._heads))
        # What writes the time says something else tomorrow.
        if not clock.is_read and len(name) <= _MOST_SPELT * len(ids):
            self._remember(name, ids)
        return ids

    def _encoded(self, texts: list[str]) -> list[list[int]]:
        return [list(ids) for ids in token_ids(texts, self._tokenizer, begin=False)]

    def _remember(self, name: str, ids: list[int]) -> None:
        with self._lock:
            if name in self._known:  # another thread was there first
                return
            self._known[name] = ids
            self._held += len(ids)
            while self._held > _MOST_TOKENS:
                _, oldest = self._known.popitem(last=False)
                self._held -= len(oldest)


def _name(prompt: Prompt) -> str:
    """What a prompt is known by."""
    return json.dumps(prompt.identity)
