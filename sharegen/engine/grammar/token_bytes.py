"""The bytes of each token, as llguidance is to know them: those that the token writes.

The library reads them from the tokenizer's file. There an added token has its own text, and a
normaliser may put a space in front of it, which SentencePiece's do: `"}` is then written ` "}`, and
a text of the grammar by the library's count would be none. An added token that is special and looks
like text would be drawn where one text alone may follow: the tokenizer is asked how to spell that.
"""

from __future__ import annotations

from typing import Any

from sharegen.engine.text.vocabulary import Vocabulary


def vocabulary_of(tokenizer: Any, size: int, ends: list[int] | None) -> Any:
    """A tokenizer as llguidance has it, with an id for each of `size` tokens.

    Raises ValueError for one that it cannot use.
    """
    from llguidance import LLTokenizer, TokenizerWrapper
    from llguidance.hf import from_tokenizer

    read = from_tokenizer(tokenizer, n_vocab=size, eos_token=ends)
    written = _misread(tokenizer, read)
    if not written:
        return read
    table = TokenizerWrapper(_Table(tokenizer, read, size, written))
    return LLTokenizer(table, n_vocab=size, eos_token=ends)


def _misread(tokenizer: Any, read: Any) -> dict[int, bytes]:
    """The added tokens that the library takes for others, and the bytes that they write in a text.

    Special ones write none, and neither do those of which nobody says.
    """
    vocabulary, found = Vocabulary.of(tokenizer), {}
    for token, added in tokenizer.added_tokens_decoder.items():
        if added.special or read.is_special_token(token):
            if not any(map(str.isalnum, added.content)):
                found[token] = b""
        else:
            written = vocabulary.utf8(token) or b""
            if written != read.decode_bytes([token]):
                found[token] = written
    return found


class _Table:
    """What llguidance asks of a tokenizer that brings its own bytes."""

    def __init__(self, tokenizer: Any, read: Any, size: int, written: dict[int, bytes]) -> None:
        """Take what was read. read: what the library makes of it; written: the bytes that are
        others.
        """
        self._read = read
        self.eos_token_id: int = tokenizer.eos_token_id or 0
        self.bos_token_id: int | None = tokenizer.bos_token_id
        silent = {token for token, own in written.items() if not own}
        special = {token for token in range(size) if read.is_special_token(token)} | silent
        self.special_token_ids = sorted(special)
        self.tokens = [
            str(tokenizer.convert_ids_to_tokens(token)).encode()
            if token in special
            else written.get(token) or read.decode_bytes([token])
            for token in range(size)
        ]
        self._ids = {own: token for token, own in enumerate(self.tokens) if token not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """How a text is spelt: as by the tokenizer, unless the tokens write something else."""
        ids = list(self._read.tokenize_bytes(text))
        own = [self.tokens[token] for token in ids]
        if b"".join(own) == text and all(map(self._ids.__contains__, own)):
            return ids
        return self._longest_first(text)

    def _longest_first(self, text: bytes) -> list[int]:
        """The longest token that the text begins with, and so on; up to where none does."""
        ids, at = [], 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            length = next((n for n in lengths if text[at : at + n] in self._ids), None)
            if length is None:
                break
            ids.append(self._ids[text[at : at + length]])
            at += length
        return ids
