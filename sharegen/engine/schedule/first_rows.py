"""How many sequences decode together while nobody has seen a sample yet.

Where a step takes as long as it has rows, as on a CPU, a full batch of samples that all began
together ends together, late. With few rows the first sample is there soon, and whoever tries
something out sees it.
"""

from __future__ import annotations

_STEPS = 64  # after so many the others begin, too: a longer sample is not worth it


class FirstRows:
    """Counts the steps until the first sample of a job has ended.

    rows: that may be taken until then; None for as many as there are.
    """

    def __init__(self, rows: int | None = None) -> None:
        self._rows = rows
        self.begin()

    def begin(self) -> None:
        """Another job begins."""
        self._steps_left = _STEPS if self._rows is not None else 0

    def step(self) -> None:
        """A decoding step was launched."""
        self._steps_left = max(0, self._steps_left - 1)

    def end(self) -> None:
        """A sample has ended."""
        self._steps_left = 0

    def most(self, rows: int, together: int) -> int:
        """Rows that may be taken now, of so many. together: that some sequences take at once."""
        if self._rows is None or self._steps_left == 0:
            return rows
        return min(rows, max(self._rows, together))
