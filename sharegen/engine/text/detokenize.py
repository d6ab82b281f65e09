"""From output tokens to the completion's text.

A completion's text is what its tokens add to the prompt's text: decode(prompt + output) less
decode(prompt). Decoding the output alone would lose the leading space of SentencePiece tokenizers
and break a character whose bytes the prompt began. Only a short tail of the prompt is decoded.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PROMPT_TAIL = 6
"""Prompt tokens decoded for context."""

# What tokenizers written in Python are seen to raise for an id that they do not have.
_RAISED = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError,
           AssertionError)  # fmt: skip

_OF_RUST = [
    "transformers.tokenization_utils_base",
    "transformers.tokenization_utils_tokenizers",
]
"""The modules of the classes whose `decode` and `_decode` these are, of tokenizers in Rust."""

_plain: dict[type, bool] = {}  # what is known of the classes of tokenizers
_warned: weakref.WeakSet[Any] = weakref.WeakSet()  # tokenizers of which it was said

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders write for bytes that are no character (yet)."""


def decode(tokenizer: Any, token_ids: Sequence[int], special: bool = False) -> str:
    """The tokens' text, spaces left as the tokenizer's decoder has them.

    special: whether special tokens are in it. Ids without a token add nothing: a model's vocabulary
    may be larger than the tokenizer's. Tokenizers in Rust leave them out, some in Python raise.
    """
    try:
        return _decode(tokenizer, token_ids, special)
    except _RAISED:
        known = [token for token in token_ids if is_known(tokenizer, token)]
        if len(known) == len(token_ids):
            raise
        _warn_once(tokenizer)
        return _decode(tokenizer, known, special)


def is_known(tokenizer: Any, token: int) -> bool:
    """Whether the tokenizer has a token of this id."""
    try:
        _decode(tokenizer, [token], True)
        return tokenizer.convert_ids_to_tokens(int(token)) is not None
    except UnicodeDecodeError:
        return True  # a piece of a character
    except _RAISED:
        return False


def _decode(tokenizer: Any, token_ids: Sequence[int], special: bool) -> str:
    if _is_plain(type(tokenizer)):
        plain: str = tokenizer.backend_tokenizer.decode(
            list(token_ids), skip_special_tokens=not special
        )
        return plain
    text: str = tokenizer.decode(
        token_ids, skip_special_tokens=not special, clean_up_tokenization_spaces=False
    )
    return text


def _is_plain(kind: type) -> bool:
    """Whether `decode` of this class of tokenizers calls one in Rust, and does no more.

    Then that is called: on its way to it, transformers looks at each id by itself, which takes four
    times as long as decoding them.
    """
    if kind not in _plain:
        makers = [next((c for c in kind.__mro__ if name in vars(c)), object).__module__
                  for name in ("decode", "_decode")]  # fmt: skip
        _plain[kind] = makers == _OF_RUST
    return _plain[kind]


def _warn_once(tokenizer: Any) -> None:
    if tokenizer not in _warned:
        _warned.add(tokenizer)
        warnings.warn(
            "the model draws ids that the tokenizer has no token for: texts go on without them",
            stacklevel=2,
        )


def completion_text(
    tokenizer: Any,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    special: bool = False,
) -> str:
    """Return what the output adds to the prompt's text; special: as for `decode`.

    Bytes that stay no character (an output cut inside one) become U+FFFD.
    """
    context = Context.of(tokenizer, prompt_tail(tokenizer, prompt_token_ids), special)
    return context.text_of(tokenizer, output_token_ids)


def prompt_tail(tokenizer: Any, token_ids: Sequence[int]) -> list[int]:
    """The last few tokens, as many as it takes to begin with a whole character."""
    count = PROMPT_TAIL
    while True:
        tail = list(token_ids[-count:])
        if count >= len(token_ids) or not _begins_inside(decode(tokenizer, tail)):
            return tail
        count *= 2


@dataclass(frozen=True)
class Context:
    """The tokens that an output's text follows, with their own text; special: as for `decode`."""

    token_ids: Sequence[int]
    text: str
    special: bool

    @classmethod
    def of(cls, tokenizer: Any, token_ids: Sequence[int], special: bool = False) -> Context:
        return cls(token_ids, decode(tokenizer, token_ids, special), special)

    def text_of(self, tokenizer: Any, token_ids: Sequence[int]) -> str:
        """Return decode(context + token_ids) less decode(context)."""
        whole = decode(tokenizer, [*self.token_ids, *token_ids], self.special)
        return text_behind(self.text, whole)


def text_after(
    tokenizer: Any, context: Sequence[int], token_ids: Sequence[int], special: bool = False
) -> str:
    """Return decode(context + token_ids) less decode(context)."""
    return Context.of(tokenizer, context, special).text_of(tokenizer, token_ids)


def text_behind(before: str, whole: str) -> str:
    """Return the text of a context and what follows it, less that of the context alone."""
    if not whole.startswith(before):
        # The context ended inside a character, which token_ids complete.
        before = before.rstrip(REPLACEMENT)
    return whole[len(before) :]


def _begins_inside(text: str) -> bool:
    return not text or text.startswith(REPLACEMENT)
