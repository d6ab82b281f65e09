"""The tokens of a tokenizer one by one: the text and the bytes that each adds to what it follows.

A token by itself decodes otherwise than in a text: SentencePiece's decoders drop a leading space,
and a piece of a character is no text at all. So a token is decoded behind another one, when it is
first asked for: ids have gaps, and models draw a small part of their vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from sharegen.engine.text.detokenize import REPLACEMENT, decode, is_known

_ANCHORS = "ae1.x"


class Vocabulary:
    """The tokens of one tokenizer; get it with `Vocabulary.of`, which remembers."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._anchor = _anchor(tokenizer)
        self._before = [len(decode(tokenizer, self._anchor, special)) for special in (False, True)]
        self._texts: tuple[dict[int, str], dict[int, str]] = {}, {}  # without and with special ones
        self._bytes: dict[int, bytes | None] = {}

    @staticmethod
    def of(tokenizer: Any) -> Vocabulary:
        """The vocabulary as it is now: tokens may have been added since it was last asked for."""
        return _vocabulary(tokenizer, len(tokenizer), tuple(tokenizer.all_special_tokens))

    def text(self, token: int, special: bool = False) -> str:
        """What the token adds to a text; "" for special ones unless asked for, and for no token.

        Bytes that are no character by themselves read U+FFFD, also where the decoder leaves them
        out.
        """
        known = self._texts[special]
        if token not in known:
            known[token] = self._read(token, special)
        return known[token]

    def utf8(self, token: int) -> bytes | None:
        """The bytes that the token stands for, special ones by their name; None: nobody says."""
        if token not in self._bytes:
            text = self.text(token, special=True)
            self._bytes[token] = self._piece(token, text) if REPLACEMENT in text else text.encode()
        return self._bytes[token]

    def _read(self, token: int, special: bool) -> str:
        text = decode(self.tokenizer, [*self._anchor, token], special)[self._before[special] :]
        if text:
            return text
        if not special:
            shown = self.text(token, special=True)
            return REPLACEMENT if shown == REPLACEMENT else ""
        return REPLACEMENT if is_known(self.tokenizer, token) else ""

    def _piece(self, token: int, text: str) -> bytes | None:
        """The bytes of a token that is no text by itself, by its name in the vocabulary."""
        name = self.tokenizer.convert_ids_to_tokens(token)
        if isinstance(name, bytes):
            return name
        for read in (_hexadecimal, _byte_level, _plain, str.encode):
            found = read(name)
            if found is not None and found.decode(errors="replace") == text:
                return found
        return None


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, size: int, special: tuple[str, ...]) -> Vocabulary:
    return Vocabulary(tokenizer)


def _anchor(tokenizer: Any) -> list[int]:
    """Tokens that another one can follow: they are text, and what comes behind does not change it.

    Empty where there are no such: then tokens are decoded by themselves.
    """
    for token in _candidates(tokenizer):
        text = decode(tokenizer, [token])
        twice = decode(tokenizer, [token, token])
        if text.strip() and REPLACEMENT not in text and twice.startswith(text):
            return [token]
    return []


def _candidates(tokenizer: Any) -> Iterator[int]:
    for letter in _ANCHORS:
        yield from tokenizer.encode(letter, add_special_tokens=False)[-1:]
    yield from range(len(tokenizer))


# How vocabularies write bytes: <0xE2>, as SentencePiece does; GPT-2's letter for each; themselves.
# And some have U+FFFD as a token of its own, which is text.


def _hexadecimal(name: str) -> bytes | None:
    is_byte = len(name) == 6 and name.startswith("<0x") and name.endswith(">")
    try:
        return bytes.fromhex(name[3:5]) if is_byte else None
    except ValueError:
        return None


def _byte_level(name: str) -> bytes | None:
    try:
        return bytes(_LETTERS[letter] for letter in name)
    except KeyError:
        return None


def _plain(name: str) -> bytes | None:
    try:
        return name.encode("latin-1")
    except UnicodeEncodeError:
        return None


def _letters() -> dict[str, int]:
    """GPT-2's letters: printable bytes are themselves, the others come behind 256 in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    hidden = {chr(256 + i): byte for i, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | hidden


_LETTERS = _letters()
