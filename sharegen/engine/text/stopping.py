"""Why a sample ends: EOS and stop token ids, and stop strings in its text.

Stop strings are found in text, not in tokens: they may begin inside one token and end inside a
later one. Decoding every sample at every step would cost more than the step; so a table over the
vocabulary tells which tokens could complete a stop at all (one look-up for a whole batch), and
only for those is a short tail decoded.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sharegen.engine.request import FinishReason, SamplingParams
from sharegen.engine.text.detokenize import REPLACEMENT, decode, prompt_tail, text_after

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
    return _end_tokens(tokenizer, tuple(params.stop), tuple(params.stop_token_ids), eos)


@lru_cache(maxsize=64)
def _end_tokens(
    tokenizer: Any | None, stop: tuple[str, ...], ids: tuple[int, ...], eos: tuple[int, ...]
) -> Mapping[int, End]:
    special = {_special_token(tokenizer, text): text for text in stop if tokenizer is not None}
    ends: dict[int, End] = {
        token: ("stop", text) for token, text in special.items() if token is not None
    }
    return ends | {token: ("stop", token) for token in ids} | dict.fromkeys(eos, ("eos", None))


def _special_token(tokenizer: Any, text: str) -> int | None:
    """The id of the special token with this text: one that decoding leaves out."""
    token = tokenizer.convert_tokens_to_ids(text)
    if token is None or decode(tokenizer, [token]):
        return None
    return token if tokenizer.decode([token]).strip() == text else None  # not one for unknown text


@dataclass(frozen=True)
class StopMatch:
    """A completion that contains a stop string: the string, and the text cut at it."""

    stop: str
    text: str


class Stops:
    """Some stop strings under one tokenizer; get it with `Stops.of`, which remembers.

    special: whether special tokens are in the text that they are found in.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], special: bool = False) -> None:
        self.tokenizer = tokenizer
        self.stops = tuple(stops)
        self.special = special
        self._longest = max(len(stop) for stop in stops)
        texts = token_texts(tokenizer, special)
        # The last entry answers for ids that the tokenizer does not have.
        self._completes = np.zeros(len(texts) + 1, dtype=bool)
        self._completes[:-1] = [any(_completes(t, stop) for stop in stops) for t in texts]

    @staticmethod
    def of(tokenizer: Any, stops: Sequence[str], special: bool = False) -> Stops:
        """The Stops of these; built once, it takes a moment for a large vocabulary."""
        return _stops(tokenizer, tuple(stops), special)

    def may_complete(self, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
        """Which of the tokens could be the one that completes a stop string. Any shape."""
        return self._completes[np.minimum(tokens, len(self._completes) - 1)]

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


def _completes(text: str, stop: str) -> bool:
    """Whether a token with this text can hold the end of the stop string."""
    if REPLACEMENT in text and not stop.isascii():
        return True  # bytes of some character, perhaps one of the stop's
    if stop in text:
        return True
    return any(stop.endswith(text[:length]) for length in range(1, len(text) + 1))


@lru_cache(maxsize=64)
def _stops(tokenizer: Any, stops: tuple[str, ...], special: bool) -> Stops:
    return Stops(tokenizer, stops, special)


_texts: weakref.WeakKeyDictionary[Any, dict[bool, list[str]]] = weakref.WeakKeyDictionary()


def token_texts(tokenizer: Any, special: bool = False) -> list[str]:
    """The text of every token when it follows another; "" for special ones unless asked for.

    Bytes that are no character by themselves read U+FFFD, also where the decoder leaves them out.
    """
    known = _texts.setdefault(tokenizer, {})
    if special not in known:
        anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]
        skip = len(decode(tokenizer, anchor, special))
        pairs = [[*anchor, token] for token in range(len(tokenizer))]
        without = set() if special else set(tokenizer.all_special_ids)
        known[special] = [
            text[skip:] or ("" if token in without else REPLACEMENT)
            for token, text in enumerate(_decode_all(tokenizer, pairs, special))
        ]
    return known[special]


def _decode_all(tokenizer: Any, token_lists: list[list[int]], special: bool) -> list[str]:
    if getattr(tokenizer, "is_fast", False):
        backend = tokenizer.backend_tokenizer
        return backend.decode_batch(token_lists, skip_special_tokens=not special)
    return [decode(tokenizer, tokens, special) for tokens in token_lists]
