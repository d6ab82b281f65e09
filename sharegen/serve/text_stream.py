"""The text of a sample in pieces, each of which stays as it is whatever comes after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sharegen.engine.text.detokenize import REPLACEMENT, decode, prompt_tail, text_behind

_MOST_TOKENS = 16  # that are decoded again with the next one


class TextStream:
    """The text of one sample, as its tokens come.

    What may turn out otherwise is held back: bytes that are no character yet, and text that a stop
    string may begin with.

    special: whether special tokens are in the text. held_from: what all text is held back from,
    itself included; None where nothing is.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt: Sequence[int],
        stops: Sequence[str],
        special: bool,
        held_from: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._stops = stops
        self._held_from = held_from
        self._context = prompt_tail(tokenizer, prompt)
        self._before = self._decode(())
        self._tokens: list[int] = []  # behind the context
        self._known = 0  # characters of them that were given out, or are held
        self._held = ""
        self.sent = 0
        """Characters that were given out."""

    def push(self, tokens: Sequence[int]) -> str:
        """What can be said for certain after these tokens."""
        self._tokens += tokens
        text = text_behind(self._before, self._decode(self._tokens))
        if len(text) > self._known and not text.endswith(REPLACEMENT):
            self._held += text[self._known :]
            self._known = len(text)
            if len(self._tokens) >= _MOST_TOKENS:
                self._context = prompt_tail(self._tokenizer, [*self._context, *self._tokens])
                self._before, self._tokens, self._known = self._decode(()), [], 0
        certain = len(self._held) - self._open()
        found, self._held = self._held[:certain], self._held[certain:]
        self.sent += len(found)
        return found

    def _decode(self, tokens: Sequence[int]) -> str:
        return decode(self._tokenizer, [*self._context, *tokens], self._special)

    def rest(self, whole: str) -> str:
        """What is still to be said of a text that has ended and is this as a whole."""
        found = whole[self.sent :]
        self.sent = max(self.sent, len(whole))
        return found

    def _open(self) -> int:
        """Characters at the end that are not for certain yet."""
        if self._held_from is None:
            return self._begun(self._stops)
        place = self._held.find(self._held_from)
        if place >= 0:
            return len(self._held) - place
        return self._begun([*self._stops, self._held_from])

    def _begun(self, stops: Sequence[str]) -> int:
        """Characters at the end that one of these may begin with."""
        longest = max(map(len, stops), default=0)
        for count in range(min(longest, len(self._held)), 0, -1):
            end = self._held[-count:]
            if any(stop.startswith(end) for stop in stops):
                return count
        return 0
