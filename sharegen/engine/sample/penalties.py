"""Repetition, frequency and presence penalties, with vLLM's scopes.

Repetition sees prompt and output (Keskar et al., CTRL, 2019), frequency and presence the output
alone (the OpenAI API's definition). They are taken off in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor


class PromptTokens:
    """Which tokens occur in each row's prompt: `seen` bool [max_rows, V] on the device.

    Allocated with the first row that has a repetition penalty; rows without one are not kept.
    """

    def __init__(
        self, max_rows: int, vocab_size: int, send: Callable[..., tuple[Tensor, ...]]
    ) -> None:
        self.seen: Tensor | None = None
        self._shape = (max_rows, vocab_size)
        self._send = send

    def set_rows(self, rows: Sequence[int], prompts: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Note the prompts of rows that have a repetition penalty."""
        if not rows:
            return
        [index] = self._send(np.asarray(rows, dtype=np.int64))
        if self.seen is None:
            self.seen = torch.zeros(self._shape, dtype=torch.bool, device=index.device)
        self.seen[index] = False
        by_prompt: dict[
            int, tuple[Sequence[int] | np.ndarray, list[int]]
        ] = {}  # samples share their prompt
        for row, prompt in zip(rows, prompts, strict=True):
            by_prompt.setdefault(id(prompt), (prompt, []))[1].append(row)
        for prompt, theirs in by_prompt.values():
            tokens = np.unique(np.asarray(prompt, dtype=np.int64))
            own = tokens[tokens < self._shape[1]]
            index, there = self._send(np.asarray(theirs, dtype=np.int64), own)
            self.seen[index[:, None], there] = True

    def move_rows(self, source: Tensor, target: Tensor) -> None:
        if self.seen is not None:
            self.seen[target] = self.seen[source]


def penalise(
    logits: Tensor,
    in_prompt: Tensor | None,
    history: Tensor | None,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> Tensor:
    """Penalise logits, and return a new float32 tensor [n, V].

    logits: any float type [n, V]; in_prompt: bool [n, V], None where no row has a repetition
    penalty; history: integers [n, L], each row's output so far, -1 beyond it, or None while all
    outputs are empty; the penalties: float32 [n] (1, 0 and 0 leave a row as it is).
    """
    vocab_size = logits.shape[1]
    logits = logits.float().clone(memory_format=torch.contiguous_format)
    flat = logits.view(-1)  # only what was seen is looked at: few tokens of a vocabulary
    seen = flat.new_zeros(0, dtype=torch.int64)
    times = seen
    if history is not None:
        row, place = ((history >= 0) & _asking(repetition, frequency, presence)).nonzero(
            as_tuple=True
        )
        seen, times = (row * vocab_size + history[row, place]).unique(return_counts=True)
    if in_prompt is not None:
        anywhere = in_prompt & (repetition != 1)[:, None]
        anywhere.view(-1)[seen] = True
        tokens = anywhere.view(-1).nonzero().squeeze(-1)
        values, factor = flat[tokens], repetition[tokens // vocab_size]
        flat[tokens] = torch.where(values < 0, values * factor, values / factor)
    row = seen // vocab_size
    flat[seen] = flat[seen] - frequency[row] * times - presence[row]
    return logits


def _asking(repetition: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    return ((repetition != 1) | (frequency != 0) | (presence != 0))[:, None]
