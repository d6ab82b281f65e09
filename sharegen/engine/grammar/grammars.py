"""The grammars of an engine, and where each sample's text is in its own.

llguidance says of a text which tokens may come next. The end of a sample is ours: the tokens that
end it (EOS, stop token ids, special tokens among the stops) may be drawn where the text is
complete, and nowhere else, whichever of them the library knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sharegen.common.grammar import library, prepared, why
from sharegen.common.structured import StructuredOutputsParams
from sharegen.engine.core.request import Request
from sharegen.engine.grammar.token_bytes import vocabulary_of
from sharegen.engine.text.stopping import end_tokens
from sharegen.errors import RequestError, UsageError

Bits = npt.NDArray[np.uint8]
"""Token 8 * i + j is bit j of byte i: set where it may be drawn."""

_KEPT = 256  # grammars that stand ready
_NO_WAY_ON = "no token may follow"


class Ends:
    """The tokens that end a sample, as bits of a mask.

    known: those that the library takes for such; they are not drawn unless they end the sample.
    """

    def __init__(self, tokens: Sequence[int], known: Sequence[int]) -> None:
        self.tokens = frozenset(tokens)
        self._allowed = _places(self.tokens)
        self._barred = _places({*tokens, *known})

    def bar(self, bits: Bits) -> None:
        for byte, bit in self._barred:
            bits[byte] &= ~bit

    def allow(self, bits: Bits) -> None:
        for byte, bit in self._allowed:
            bits[byte] |= bit


def _places(tokens: Iterable[int]) -> list[tuple[int, np.uint8]]:
    """The byte of each token and its bit there."""
    return [(token >> 3, np.uint8(1 << (token & 7))) for token in tokens]


class Grammar:
    """One grammar under one tokenizer.

    Its matchers share what they learn of it. What one of them makes too large for the library's
    limits fails for all: see `Matcher`.
    """

    def __init__(self, library: Any, vocabulary: Any, text: str) -> None:
        self._library = library
        self._vocabulary = vocabulary
        self._text = text
        self._base = self.fresh()

    def fresh(self) -> Any:
        """A matcher of the library's own that shares nothing with others."""
        return self._library.LLMatcher(self._vocabulary, self._text, log_level=0)

    def matcher(self) -> Any:
        """Make a matcher that shares what others have learnt."""
        return self._base.deep_copy()

    def renew(self) -> None:
        """Let matchers share something new from now on."""
        self._base = self.fresh()


class Matcher:
    """Follows the text of one sample in its grammar.

    text: what stands of it when the sample begins. min_tokens: before so many of the sample's own
    the ends are drawn only where nothing else may be. error: why no token may follow any more, from
    when that is so.
    """

    def __init__(
        self, grammar: Grammar, ends: Ends, min_tokens: int = 0, text: Sequence[int] = ()
    ) -> None:
        self._grammar = grammar
        self._matcher = grammar.matcher()
        self._ends = ends
        self._min_tokens = min_tokens
        self._before = len(text)
        self._tokens: list[int] = []
        self.error: str | None = None
        self.take([int(token) for token in text])

    @property
    def native(self) -> Any:
        """The library's own, to be asked for its mask."""
        return self._matcher

    @property
    def drawn(self) -> int:
        """The sample's own tokens that it has taken."""
        return len(self._tokens) - self._before

    def take(self, tokens: list[int]) -> None:
        """The tokens that the text goes on with."""
        self._tokens += tokens
        if not self._matcher.consume_tokens(tokens):
            self._retry()

    def settle(self, bits: Bits) -> None:
        """Make of the library's mask, in `bits`, what the sample may draw next."""
        if self.error is None and self._matcher.is_error():
            self._retry()
            if self.error is None:
                bits[:] = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)[: len(bits)]
        if self.error is not None:
            bits[:] = 0
            return
        self._ends.bar(bits)
        if self._matcher.is_accepting() and (self.drawn >= self._min_tokens or not bits.any()):
            self._ends.allow(bits)

    def _retry(self) -> None:
        """The library gave up: see whether it does so for this text alone, too.

        Its limits count what all matchers of a grammar have learnt together, and one sample is not
        to fail for what others have drawn.
        """
        self._grammar.renew()
        self._matcher = self._grammar.fresh()
        for token in self._tokens:
            self._matcher.compute_bitmask()  # as if it had been drawn
            if not self._matcher.consume_token(token):
                break
        self._matcher.compute_bitmask()
        if self._matcher.is_error():
            self.error = why(self._matcher) or _NO_WAY_ON


class Grammars:
    """All grammars of an engine's requests, under its tokenizer.

    vocab_size: of the model; bits of a mask are of its tokens.
    """

    def __init__(
        self, tokenizer: Any | None, eos_token_ids: Sequence[int], vocab_size: int
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocab_size = vocab_size
        self._vocabulary: Any = None
        self._executor: Any = None
        self._grammar = lru_cache(maxsize=_KEPT)(self._made)

    def check(self, request: Request) -> None:
        """Raise RequestError where no text of the request's could begin, or be ended."""
        params = request.params
        if params.structured_outputs is None:
            return
        if self._tokenizer is None:
            raise RequestError("structured_outputs need a tokenizer, and none is loaded")
        if not end_tokens(params, self._tokenizer, self._eos_token_ids):
            raise RequestError(
                "structured_outputs end with a token, and there is none: leave out ignore_eos, or "
                "give stop_token_ids"
            )
        try:
            matcher = self.begin(request)
        except UsageError as error:
            raise RequestError(str(error)) from None
        [mask] = self.masks([matcher])
        if not mask.any():
            kind = params.structured_outputs.kind
            raise RequestError(f"structured_outputs.{kind}: {matcher.error or _NO_WAY_ON}")

    def begin(self, request: Request) -> Matcher:
        """Return the place in the grammar where the samples of a request begin.

        Raises UsageError for what cannot be asked of this tokenizer, or of a text that is complete.
        """
        params = request.params
        assert params.structured_outputs is not None
        grammar = self._grammar(params.structured_outputs)
        tokens = end_tokens(params, self._tokenizer, self._eos_token_ids)
        known = self._vocabulary.eos_tokens
        ends = Ends(*([t for t in some if t < self._vocab_size] for some in (tokens, known)))
        text = request.prompt_token_ids[len(request.prompt_token_ids) - request.text_tokens :]
        if not ends.tokens.isdisjoint(text):
            raise UsageError("the text of structured_outputs is complete: fork fewer of its tokens")
        return Matcher(grammar, ends, params.min_tokens, text)

    def masks(self, matchers: Sequence[Matcher]) -> Bits:
        """What each may draw next: uint8 [n, ceil(V / 8)]; nothing where there is an error."""
        words = np.zeros((len(matchers), -(-self._vocabulary.vocab_size // 32)), dtype=np.int32)
        asked = [(matcher.native, i) for i, matcher in enumerate(matchers) if not matcher.error]
        if asked:
            self._executor.unsafe_compute_mask_ptr(
                asked, words.ctypes.data, words.shape[1] * words.itemsize, len(words)
            )
        masks = np.ascontiguousarray(words.view(np.uint8)[:, : -(-self._vocab_size // 8)])
        for matcher, bits in zip(matchers, masks, strict=True):
            matcher.settle(bits)
        return masks

    def _made(self, params: StructuredOutputsParams) -> Grammar:
        text = prepared(params)
        llguidance = library()
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
            self._executor = llguidance.LLExecutor()
        return Grammar(llguidance, self._vocabulary, text)

    def _read_vocabulary(self) -> Any:
        """The tokenizer as the library has it, with an id for each of the model's."""
        tokenizer: Any = self._tokenizer
        size = max(self._vocab_size, len(tokenizer))
        try:
            return vocabulary_of(tokenizer, size, list(self._eos_token_ids) or None)
        except ValueError as error:
            raise UsageError(f"structured_outputs cannot use this tokenizer: {error}") from None
