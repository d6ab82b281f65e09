"""Text that many prompts begin with, tokenised once: few-shot examples are most of a prompt.

Prompts cut anywhere and tokenised in pieces would not give the tokens of whole ones. There are
tokenizers of which it is certain that they would: byte-level BPE merges within words alone, and its
usual patterns of words end one between a line's end and a letter, whatever else the text is, and
look for the next as if a text began there. Others tokenise whole prompts.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORTH = 100_000  # characters that are not tokenised again, for the tokens of some prompts twice
_PLACE = re.compile(r"\n(?=[A-Za-z])")
_NUMBERS = ("{1,3}", "")  # digits together: of Llama 3, and of Qwen
_PATTERNS = frozenset(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    + most
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for most in _NUMBERS
)

_LEAST = 1000  # characters of a text that one looks for in texts that come one by one
_LARGEST = 1 << 18  # characters of a text that is remembered
_HEADS = 16
_LAST = 4

Encode = Callable[[list[str]], list[list[int]]]
Share = Callable[[Sequence[str], "PreTrainedTokenizerBase", Encode], Sequence[Sequence[int]]]


def encoded(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, encode: Encode
) -> Sequence[Sequence[int]]:
    """Token ids of texts, which are what `encode` returns for all of them."""
    place = _place(texts)
    if place * (len(texts) - 1) < _WORTH or not may_cut(tokenizer):
        return encode(list(texts))
    first, last = encode([texts[0], texts[-1]])
    rest = encode([text[place:] for text in texts])
    start = first[: len(first) - len(rest[0])]
    if start + rest[0] != first or start + rest[-1] != last:
        return encode(list(texts))
    both = array("i", start)  # a tenth of the time that a list takes
    return [both + array("i", ids) for ids in rest]


class SharedHeads:
    """What texts that come one by one begin with, tokenised once. Several threads may ask.

    A head is learnt from the second text that begins with it. Instances are called as `encoded` is.
    """

    def __init__(self) -> None:
        self._heads: OrderedDict[str, list[int]] = OrderedDict()
        self._last: deque[str] = deque(maxlen=_LAST)
        self._may_cut: bool | None = None
        self._lock = threading.Lock()

    def __call__(
        self, texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, encode: Encode
    ) -> list[list[int]]:
        """Token ids of texts, which are what `encode` returns for all of them."""
        if self._may_cut is None:
            self._may_cut = may_cut(tokenizer)
        return [self._encoded(text, encode) for text in texts]

    def _encoded(self, text: str, encode: Encode) -> list[int]:
        if not self._may_cut or not _LEAST <= len(text) <= _LARGEST:
            return encode([text])[0]
        with self._lock:
            head = max((each for each in self._heads if _goes_on(text, each)), key=len, default="")
            known = self._heads.get(head, [])
            if head:
                self._heads.move_to_end(head)
            is_far = len(text) - len(head) >= _LEAST  # from what is known of it
            new = max((_place((text, other)) for other in self._last), default=0) if is_far else 0
            if is_far:
                self._last.append(text)
        rest = encode([text[len(head) :]])[0]
        if new >= len(head) + _LEAST:
            # What stands before a place is not tokenised alone: spaces that end a text are others
            # than those before a letter.
            behind = encode([text[new:]])[0]
            with self._lock:
                self._heads[text[:new]] = known + rest[: len(rest) - len(behind)]
                while len(self._heads) > _HEADS:
                    self._heads.popitem(last=False)
        return known + rest


def _goes_on(text: str, head: str) -> bool:
    """Whether a text begins with this, and goes on as at `_place`."""
    return text.startswith(head) and _PLACE.match(text, len(head) - 1) is not None


def _place(texts: Sequence[str]) -> int:
    """The last place in what all texts begin with that is after a line's end, before a letter."""
    first, last = min(texts), max(texts)
    end, most = 0, min(len(first), len(last))
    while end < most:  # halved each time: to compare one by one takes longer than the tokens
        some = (end + most + 1) // 2
        if first.startswith(last[:some]):
            end = some
        else:
            most = some - 1
    places = [match.end() for match in _PLACE.finditer(first[:end])]
    return places[-1] if len(texts) > 1 and places else 0


def may_cut(tokenizer: PreTrainedTokenizerBase, place: str = "\n") -> bool:
    """Whether the tokens of a text are those of its two parts, wherever it is cut.

    place: "\n" for cuts between it and a letter, " " for those between what is no space and it.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.model).__name__ != "BPE" or backend.model.dropout:
        return False
    if backend.normalizer is not None and type(backend.normalizer).__name__ != "NFC":
        return False
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or place in token.content for token in added):
        return False
    return backend.pre_tokenizer is not None and _ends_words(backend.pre_tokenizer)


def _ends_words(pre_tokenizer: Any) -> bool:
    """Whether one of its parts ends a word there, and none looks further than that."""
    rules = json.loads(pre_tokenizer.__getstate__())
    parts = rules["pretokenizers"] if rules["type"] == "Sequence" else [rules]
    if not all(map(_is_local, parts)) or parts[-1]["type"] != "ByteLevel":
        return False
    return any(part["type"] == "Split" or part.get("use_regex") for part in parts)


def _is_local(part: dict[str, Any]) -> bool:
    match part["type"]:
        case "ByteLevel":
            return not part["add_prefix_space"]
        case "Split":
            is_whole = part["behavior"] == "Isolated" and not part["invert"]
            return is_whole and part["pattern"].get("Regex") in _PATTERNS
        case "Digits":
            return True
        case _:
            return False
