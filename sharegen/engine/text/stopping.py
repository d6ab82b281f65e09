"""Why a sample ends: EOS and stop token ids, and stop strings in its text.

Stop strings are found in text, not in tokens: they may begin inside one token and end inside a
later one. Decoding every sample at every step would cost more than the step; so it is remembered
which tokens could complete a stop at all, and only behind those is a short tail decoded. Whether a
token could is found out when it is first drawn: a list of stops costs nothing to prepare, however
long it is, and no two lists that run together get in each other's way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from sharegen.engine.core.request import FinishReason, SamplingParams
from sharegen.engine.text.detokenize import REPLACEMENT, decode, prompt_tail, text_after
from sharegen.engine.text.vocabulary import Vocabulary

End: TypeAlias = tuple[FinishReason, str | int | None]
"""Why a sample ended: (finish_reason, stop_reason)."""


def end_tokens(
    params: SamplingParams, tokenizer: Any | None, eos_token_ids: Sequence[int]
) -> Mapping[int, End]:
    """The tokens that end a sample with these params, and the end that each one is.

    EOS tokens, stop token ids, and special tokens that a stop string names: decoding leaves these
    out, so that they are never found in text.
    """
    eos = () if params.ignore_eos else tuple(eos_token_ids)
    vocabulary = Vocabulary.of(tokenizer) if tokenizer is not None and params.stop else None
    return _end_tokens(vocabulary, tuple(params.stop), tuple(params.stop_token_ids), eos)


@lru_cache(maxsize=1024)
def _end_tokens(
    vocabulary: Vocabulary | None, stop: tuple[str, ...], ids: tuple[int, ...], eos: tuple[int, ...]
) -> Mapping[int, End]:
    special = {} if vocabulary is None else {_special_token(vocabulary, s): s for s in stop}
    ends: dict[int, End] = {
        token: ("stop", text) for token, text in special.items() if token is not None
    }
    return ends | {token: ("stop", token) for token in ids} | dict.fromkeys(eos, ("eos", None))


def _special_token(vocabulary: Vocabulary, text: str) -> int | None:
    """The id of the special token with this text: one that decoding leaves out."""
    token = vocabulary.tokenizer.convert_tokens_to_ids(text)
    if token is None or vocabulary.text(token):
        return None
    # Not one that stands for all unknown text.
    return token if vocabulary.text(token, special=True).strip() == text else None


@dataclass(frozen=True)
class StopMatch:
    """A completion that contains a stop string: the string, and the text cut at it."""

    stop: str
    text: str


class Stops:
    """Some stop strings under one tokenizer; get it with `Stops.of`, which remembers.

    special: whether special tokens are in the text that they are found in.
    """

    def __init__(self, vocabulary: Vocabulary, stops: Sequence[str], special: bool = False) -> None:
        self.tokenizer = vocabulary.tokenizer
        self.stops = tuple(stops)
        self.special = special
        self._vocabulary = vocabulary
        self._longest = max(len(stop) for stop in stops)
        self._all_ascii = all(stop.isascii() for stop in stops)
        self._last_letters = frozenset(stop[-1] for stop in stops)
        self._ended = "".join(stop + _END for stop in stops)
        self.harmless: set[int] = set()
        """Tokens that are known to complete no stop string: a job asks it for every token."""
        self._harmful: set[int] = set()

    @staticmethod
    def of(tokenizer: Any, stops: Sequence[str], special: bool = False) -> Stops:
        """The Stops of these. Ask once for a request: what it has learnt of tokens stays with it,
        and is shared with others who ask for the same meanwhile."""
        return _stops(Vocabulary.of(tokenizer), tuple(stops), special)

    def may_complete(self, token: int) -> bool:
        """Whether a token could be the one that completes a stop string."""
        if token in self.harmless:
            return False
        if token not in self._harmful:
            (self._harmful if self._can(token) else self.harmless).add(token)
        return token in self._harmful

    def _can(self, token: int) -> bool:
        """Whether the text of a token can hold the end of a stop string."""
        text = self._vocabulary.text(token, self.special)
        if REPLACEMENT in text and not self._all_ascii:
            return True  # bytes of some character, perhaps one of a stop's
        ends = [end for end, letter in enumerate(text, 1) if letter in self._last_letters]
        if not ends:
            return False
        return any(text[:end] + _END in self._ended for end in ends) or any(
            stop in text for stop in self.stops
        )

    def match(
        self,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int],
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
    ) -> StopMatch | None:
        """Whether the last output token completes a stop string, and the text cut at it.

        Ask after every token that may_complete; the earliest stop in the text counts. The text
        keeps the stop itself if include_stop. No stop counts that ends within the first
        min_tokens tokens.
        """
        if len(output_token_ids) <= min_tokens or not self._in_tail(
            prompt_token_ids, output_token_ids
        ):
            return None
        context = prompt_tail(self.tokenizer, prompt_token_ids)
        text = text_after(self.tokenizer, context, output_token_ids, self.special)
        exempt = 0
        if min_tokens:
            within = output_token_ids[:min_tokens]
            exempt = len(text_after(self.tokenizer, context, within, self.special))
        found = []
        for stop in self.stops:
            start = text.find(stop, max(0, exempt - len(stop) + 1))
            if start >= 0:
                found.append((start, len(stop), stop))
        if not found:
            return None
        start, length, stop = min(found)
        return StopMatch(stop, text[: start + length if include_stop else start])

    def _in_tail(self, prompt: Sequence[int], output: Sequence[int]) -> bool:
        """Whether a stop ends in the last token, as far as decoding a short tail tells.

        The tail is long enough once the text before the last token holds a whole stop and begins
        with a whole character; special and byte tokens may make it longer.
        """
        count = self._longest + 2
        while True:
            tail = list(output[-count:])
            whole = count >= len(output)
            if whole:
                tail = [*prompt_tail(self.tokenizer, prompt), *tail]
            text = decode(self.tokenizer, tail, self.special)
            if any(stop in text for stop in self.stops):
                return True
            before = decode(self.tokenizer, tail[:-1], self.special)
            if whole or (len(before) >= self._longest and not before.startswith(REPLACEMENT)):
                return False
            count *= 2


_END = "\0"
"""Behind each of the stops that are looked through together. One that has it in it may hold up a
look at the text, and changes no answer."""


@lru_cache(maxsize=64)
def _stops(vocabulary: Vocabulary, stops: tuple[str, ...], special: bool) -> Stops:
    return Stops(vocabulary, stops, special)
