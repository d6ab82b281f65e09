"""Memory for a step of several ranks, asked of all of them before any begins it.

A rank that found none in mid-step would leave the others waiting for its part of a sum. So each
tries to get what such steps take at their largest, and where one cannot, all take the step back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sharegen.engine.execute.memory import is_out_of_memory
from sharegen.engine.model.tensor_parallel.ranks import Ranks

_PIECE = 256 << 20  # bytes: what outlives a step keeps torch from giving back the piece it lies in


class TakenBack(RuntimeError):
    """A rank has no memory for a step, which none has begun."""


@dataclass(frozen=True)
class StepMemory:
    """Bytes of the largest steps at their peaks, where they were measured.

    prefill: of a batch of `tokens` tokens; decode: of `rows` rows. Smaller steps take less, about
    by their size.
    """

    tokens: int
    rows: int
    prefill: int = 0
    decode: int = 0


class Room:
    """Asks before a step that may take memory; every rank must ask for the same steps."""

    def __init__(self, ranks: Ranks, largest: StepMemory) -> None:
        self._ranks = ranks
        self._largest = largest

    def for_prefill(self, tokens: int) -> None:
        """Ask before a batch of so many tokens. Raises TakenBack."""
        largest = self._largest
        self._agree(largest.prefill * min(tokens, largest.tokens) // largest.tokens)

    def for_decode(self, rows: int) -> None:
        """Ask before a decoding step that is no graph's replay. Raises TakenBack."""
        self._agree(self._decode(rows))

    def for_capture(self, rows: int, spare: Callable[[], None]) -> None:
        """Ask before a step that is to be captured: a graph keeps its memory beside what steps
        take.

        spare: gives back what earlier graphs keep, where there is no room beside them. Raises
        TakenBack.
        """
        count = self._largest.prefill + self._decode(rows)
        try:
            self._agree(count)
        except TakenBack:
            spare()
            self._agree(count)
        torch.cuda.empty_cache()  # what was tried is no graph's

    def _decode(self, rows: int) -> int:
        return self._largest.decode * min(rows, self._largest.rows) // self._largest.rows

    def _agree(self, count: int) -> None:
        if not self._ranks.least(has_room(count, self._ranks.device)):
            raise TakenBack("a rank has no memory for the step")


def has_room(count: int, device: torch.device) -> bool:
    """Whether so many bytes can be had on a GPU; of a CPU, nobody knows."""
    if device.type != "cuda":
        return True
    try:
        _ = [
            torch.empty(min(_PIECE, count - start), dtype=torch.uint8, device=device)
            for start in range(0, count, _PIECE)
        ]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
