"""What is added to single logits before anything else: logit_bias, bad_words, min_tokens.

All three are one thing, an edit: add `value` to the logit of `token` while the sample has fewer
than `until` tokens and what precedes is `prefix`. A bias has no condition; a bad word bars its
last token (-inf) after its others; min_tokens bars what would end the sample until then. Barring
commutes with biases and penalties, so one addition serves transformers' three processors
(SequenceBias, NoBadWords, MinNewTokensLength).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharegen.engine.core.request import SamplingParams
from sharegen.engine.text.stopping import end_tokens

ALWAYS = 2**62
_ANY = -2  # a prefix position that matches every token
_NONE = -1  # a position before the prompt's start; matches no token


@dataclass(frozen=True)
class Edit:
    """Add `value` to the logit of `token` while position < until and the context ends in prefix."""

    token: int
    value: float
    until: int = ALWAYS
    prefix: tuple[int, ...] = ()


def edits_of(
    params: SamplingParams, tokenizer: Any, eos_token_ids: Sequence[int], vocab_size: int
) -> list[Edit]:
    """The edits that a request asks for.

    A bad word is barred as the tokens it has at the start of a text and after a space; an EOS token
    is never barred as a bad word, as in transformers.
    """
    edits = [Edit(token, bias) for token, bias in (params.logit_bias or {}).items()]
    if params.bad_words:
        for word in bad_word_ids(tokenizer, params.bad_words):
            if len(word) > 1 or word[0] not in eos_token_ids:
                edits.append(Edit(word[-1], -math.inf, prefix=word[:-1]))
    if params.min_tokens and params.structured_outputs is None:  # else a mask says where it ends
        ends = sorted(end_tokens(params, tokenizer, eos_token_ids))
        edits += [Edit(token, -math.inf, until=params.min_tokens) for token in ends]
    return [edit for edit in edits if 0 <= edit.token < vocab_size]


def bad_word_ids(tokenizer: Any, words: Sequence[str]) -> list[tuple[int, ...]]:
    """The token sequences that write the words, at the start of a text and after a space."""
    spellings = [spelling for word in words for spelling in (word.lstrip(), " " + word.lstrip())]
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in spellings]
    return list(dict.fromkeys(sequence for sequence in ids if sequence))


class LogitEdits:
    """The edits of up to max_rows rows, as padded arrays on the device.

    tokens int64, values float32, until int64: [max_rows, num_slots]; prefixes int64
    [max_rows, num_slots, context], right-aligned; prompt_tails int64 [max_rows, context]: the
    prompt's last tokens. Slots and context grow (to powers of two) with what rows ask for.
    """

    def __init__(self, max_rows: int, send: Callable[..., tuple[Tensor, ...]]) -> None:
        self.max_rows = max_rows
        self.num_slots = 0
        self.context = 0
        self._send = send
        self._allocate(0, 0)

    def set_rows(
        self,
        rows: Sequence[int],
        edits: Sequence[Sequence[Edit]],
        prompts: Sequence[Sequence[int] | np.ndarray],
    ) -> None:
        """Replace the edits of `rows`; prompts: the token ids that precede the sample."""
        slots = max(len(of_row) for of_row in edits)
        context = max((len(edit.prefix) for of_row in edits for edit in of_row), default=0)
        self._grow(slots, context)
        if not self.num_slots:
            return
        shape = (len(rows), self.num_slots)
        tokens, until = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        values = np.zeros(shape, np.float32)
        prefixes = np.full((*shape, self.context), _ANY, np.int64)
        tails = np.full((len(rows), self.context), _NONE, np.int64)
        for i, (of_row, prompt) in enumerate(zip(edits, prompts, strict=True)):
            for j, edit in enumerate(of_row):
                tokens[i, j], values[i, j], until[i, j] = edit.token, edit.value, edit.until
                if edit.prefix:
                    prefixes[i, j, -len(edit.prefix) :] = edit.prefix
            if self.context and of_row:
                tail = prompt[-self.context :]
                tails[i, self.context - len(tail) :] = tail
        index, *written = self._send(
            np.asarray(rows, dtype=np.int64), tokens, values, until, prefixes, tails
        )
        for array, new in zip(self._arrays, written, strict=True):
            array[index] = new

    def move_rows(self, source: Tensor, target: Tensor) -> None:
        for array in self._arrays:
            array[target] = array[source]

    def apply(
        self, logits: Tensor, rows: slice | Tensor, positions: Tensor, history: Tensor | None
    ) -> Tensor:
        """Apply the edits, and return a new float32 tensor [n, V].

        positions: int64 [n]; history: integers [max_rows, L], each row's output so far (only read
        below the row's position), or None while all outputs are empty.
        """
        active = positions[:, None] < self.until[rows]
        if self.context:
            recent = self._recent(rows, positions, history)[:, None, :]
            prefixes = self.prefixes[rows]
            active &= ((prefixes == recent) | (prefixes == _ANY)).all(-1)
        values = torch.where(active, self.values[rows], 0.0)
        return logits.to(torch.float32, copy=True).scatter_add_(1, self.tokens[rows], values)

    def _recent(self, rows: slice | Tensor, positions: Tensor, history: Tensor | None) -> Tensor:
        """The last `context` tokens of prompt and output: int64 [n, context]."""
        offsets = torch.arange(self.context, device=positions.device)
        index = positions[:, None] + offsets  # into the prompt's tail, then into the history
        recent = self.prompt_tails[rows].gather(1, index.clamp(max=self.context - 1))
        if history is None:
            return recent
        drawn = history[rows].gather(1, (index - self.context).clamp(min=0))
        return torch.where(index >= self.context, drawn, recent)

    def _grow(self, slots: int, context: int) -> None:
        if slots <= self.num_slots and context <= self.context:
            return
        old, old_slots, old_context = self._arrays, self.num_slots, self.context
        self._allocate(
            max(_power_of_two(slots), old_slots), max(_power_of_two(context), old_context)
        )
        for new, array in zip(self._arrays[:3], old[:3], strict=True):
            new[:, :old_slots] = array
        shift = self.context - old_context
        self.prefixes[:, :old_slots, shift:] = old[3]
        self.prompt_tails[:, shift:] = old[4]

    def _allocate(self, slots: int, context: int) -> None:
        shape = (self.max_rows, slots)
        self.num_slots, self.context = slots, context
        self.tokens, self.values, self.until, self.prefixes, self.prompt_tails = self._send(
            np.zeros(shape, np.int64),
            np.zeros(shape, np.float32),
            np.zeros(shape, np.int64),
            np.full((*shape, context), _ANY, np.int64),
            np.full((self.max_rows, context), _NONE, np.int64),
        )
        self._arrays = (self.tokens, self.values, self.until, self.prefixes, self.prompt_tails)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length() if count else 0
