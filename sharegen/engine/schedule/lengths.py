"""How long samples turn out: what finished ones say about those that still run."""

from __future__ import annotations

_NEEDED = 32  # finished samples before their lengths say what to expect of the others


class Lengths:
    """Output tokens of the samples that have finished, summed up."""

    def __init__(self) -> None:
        self._count = 0
        self._total = 0.0
        self._squares = 0.0

    def note(self, length: int) -> None:
        self._count += 1
        self._total += length
        self._squares += length * length

    def expected(self) -> float:
        """Output tokens of a typical long sample; infinite while too little is known."""
        if self._count < _NEEDED:
            return float("inf")
        mean = self._total / self._count
        return mean + max(0.0, self._squares / self._count - mean * mean) ** 0.5
