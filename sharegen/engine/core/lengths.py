"""How long the samples of a job turned out: what one run of it learns, and the next one knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Lengths:
    """Counts samples by their output tokens.

    ended: those that came to an end by themselves. cut: those that would have gone on, had they
    not met their limit or been cancelled.
    """

    ended: Counter[int] = field(default_factory=Counter)
    cut: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, samples: Mapping[tuple[int, str | None], int]) -> Lengths:
        """Count samples: how many there are of so many tokens and with this finish reason."""
        lengths = cls()
        for (tokens, reason), count in samples.items():
            lengths.note(tokens, reason not in ("length", "context"), count)
        return lengths

    def note(self, tokens: int, is_end: bool, count: int = 1) -> None:
        (self.ended if is_end else self.cut)[tokens] += count

    def learn(self, other: Lengths) -> None:
        """Take in what another one knows."""
        self.ended += other.ended
        self.cut += other.cut

    def clear(self) -> None:
        self.ended.clear()
        self.cut.clear()
