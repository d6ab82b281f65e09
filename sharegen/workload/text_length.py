"""Whether a text has more tokens than there is room for, seen without tokenising all of it.

Megabytes take minutes to tokenise, and most of them are refused for their length. A text is said to
be longer only where that is certain: by the fewest tokens that so many characters can have, or by
the tokens of its beginning, where it is cut at a place at which no token goes on.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sharegen.workload.shared_text import Encode, may_cut

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FIRST, _SECOND = 8, 32
"""Characters for each token that there is room for, of which the beginning has so many: few texts
have more than the first, and what has more than the second is tokenised as a whole."""

_CUT = re.compile(r"(?<=[!-~])(?= )|(?<=[A-Za-z0-9])(?=\n)")
_NEAR = 4096  # characters in which a place to cut is looked for
_COMPOSED = 4  # characters of which NFC makes one, at most


class TextLength:
    """What is certain of the lengths of texts under one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def is_over(self, text: str, most: int, encode: Encode) -> bool:
        """Whether a text surely has more than so many tokens. encode: gives token ids of texts."""
        if len(text) <= 2 * _FIRST * most:
            return False
        if self._is_over_by_characters(text, most):
            return True
        return self._may_cut and any(
            len(text) > 2 * each * most and self._begins_over(text[: each * most], most, encode)
            for each in (_FIRST, _SECOND)
        )

    @staticmethod
    def _begins_over(beginning: str, most: int, encode: Encode) -> bool:
        start = max(0, len(beginning) - _NEAR)
        places = [start + match.start() for match in _CUT.finditer(beginning[start:])]
        if not places:
            return False
        [ids] = encode([beginning[: places[-1]]])
        return len(ids) > most

    def _is_over_by_characters(self, text: str, most: int) -> bool:
        shrinks, longest = self._longest
        if not longest:
            return False
        if not self._dropped:
            return len(text) > shrinks * longest * most
        # Which no normalizer here shrinks.
        return text.isascii() and len(text.encode().translate(None, self._dropped)) > longest * most

    @cached_property
    def _may_cut(self) -> bool:
        """Whether no token goes on over the places of `_CUT`."""
        return all(may_cut(self._tokenizer, place) for place in " \n")

    @cached_property
    def _longest(self) -> tuple[int, int]:
        """How many characters a normalizer makes one of, and one token can stand for, at most.

        Zeros where that is not known.
        """
        backend: Any = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None or type(backend.model).__name__ != "BPE":
            return 0, 0
        shrinks = _shrinks(backend.normalizer)
        added = backend.get_added_tokens_decoder().values()
        if not shrinks or any(token.lstrip or token.rstrip for token in added):
            return 0, 0
        if not _keeps_bytes(backend.pre_tokenizer, backend.model.byte_fallback):
            return 0, 0
        return shrinks, max(map(len, backend.get_vocab(with_added_tokens=True)))

    @cached_property
    def _dropped(self) -> bytes:
        """The bytes that have no token, which a text loses."""
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        backend: Any = self._tokenizer.backend_tokenizer  # type: ignore[attr-defined]
        known = backend.get_vocab(with_added_tokens=True)
        if (
            backend.pre_tokenizer is None
        ):  # without all of them any text may become one unknown token
            is_whole = all(f"<0x{each:02X}>" in known for each in range(256))
            return b"" if is_whole else bytes(range(256))
        return bytes(each for each, name in bytes_to_unicode().items() if name not in known)


def _keeps_bytes(pre_tokenizer: Any, falls_back: bool) -> bool:
    """Whether all bytes of a text reach the model. falls_back: whether it has tokens for bytes."""
    if pre_tokenizer is None:
        return falls_back
    rules = json.loads(pre_tokenizer.__getstate__())
    parts = rules["pretokenizers"] if rules["type"] == "Sequence" else [rules]
    return parts[-1]["type"] == "ByteLevel" and all(
        part["type"] in ("ByteLevel", "Digits")
        or (part["type"] == "Split" and part["behavior"] != "Removed")
        for part in parts
    )


def _shrinks(normalizer: Any) -> int:
    """How many characters become one before there are tokens, at most; 0 where it is not known."""
    if normalizer is None:
        return 1
    rules = json.loads(normalizer.__getstate__())
    parts = rules["normalizers"] if rules["type"] == "Sequence" else [rules]
    found = 1
    for part in parts:
        match part:
            case {"type": "NFC"}:
                found *= _COMPOSED
            case {"type": "Prepend"}:
                pass
            case {"type": "Replace", "pattern": {"String": " "}, "content": str(new)} if new:
                pass
            case _:
                return 0
    return found
