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
        self, max_rows: int, vocab_size: int, send: Callable[[np.ndarray], Tensor]
    ) -> None:
        self.seen: Tensor | None = None
        self._shape = (max_rows, vocab_size)
        self._send = send

    def set_rows(self, rows: Sequence[int], prompts: Sequence[Sequence[int]]) -> None:
        """Note the prompts of rows that have a repetition penalty."""
        if not rows:
            return
        index = self._send(np.asarray(rows, dtype=np.int64))
        if self.seen is None:
            self.seen = torch.zeros(self._shape, dtype=torch.bool, device=index.device)
        distinct = [np.unique(np.asarray(prompt, dtype=np.int64)) for prompt in prompts]
        distinct = [tokens[tokens < self._shape[1]] for tokens in distinct]
        of_row = np.repeat(np.asarray(rows, np.int64), [len(tokens) for tokens in distinct])
        self.seen[index] = False
        self.seen[self._send(of_row), self._send(np.concatenate(distinct))] = True

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
    """The penalised logits, a new float32 tensor [n, V].

    logits: any float type [n, V]; in_prompt: bool [n, V], None where no row has a repetition
    penalty; history: int64 [n, L], each row's output so far, -1 beyond it, or None while all
    outputs are empty; the penalties: float32 [n] (1, 0 and 0 leave a row as it is).
    """
    logits = logits.float()
    counts = torch.zeros_like(logits)
    if history is not None:
        counts.scatter_add_(1, history.clamp(min=0), (history >= 0).float())
    in_output = counts > 0
    if in_prompt is not None:
        factor = repetition[:, None]
        damped = torch.where(logits < 0, logits * factor, logits / factor)
        logits = torch.where(in_prompt | in_output, damped, logits)
    logits = logits - frequency[:, None] * counts
    return logits - presence[:, None] * in_output
