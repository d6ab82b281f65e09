"""What the samples in the rows have drawn: arrays, to which a step's tokens are added in one go.

Each row of a large batch is an object with a list of its own, far from the last row's, and a loop
over them waits for memory. Tokens are in an array by row while a sample runs, and a list again when
it leaves its row.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from sharegen.engine.core.batch import Int32, Int64

_NOT_HERE = -2  # as `known`, of a row whose tokens are not here: no index of a step is that


class RowOutputs:
    """The outputs of up to `capacity` rows; those of some rows are kept elsewhere."""

    def __init__(self, capacity: int) -> None:
        self._known = np.full(capacity, _NOT_HERE, dtype=np.int32)
        self._tokens = np.empty((capacity, 1), dtype=np.int32)
        self._logprob = np.zeros(capacity)
        self._limit = np.zeros(capacity, dtype=np.int32)
        self._stops = np.zeros(capacity, dtype=np.int32)  # by row, which of the next, 0: none
        self._all_stops: list[Any] = [None]
        self._numbers: dict[int, int] = {}

    def widen(self, most: int) -> None:
        """Let rows have so many tokens."""
        if most > self._tokens.shape[1]:
            # What is never written to takes no memory: most rows end long before their limit.
            wider = np.empty((len(self._tokens), most), dtype=np.int32)
            for row in np.flatnonzero(self._known >= 0).tolist():
                known = self._known[row]
                wider[row, :known] = self._tokens[row, :known]
            self._tokens = wider

    # -- of one row ---------------------------------------------------------------------------

    def begin(
        self, row: int, tokens: list[int], logprob: float, limit: int, stops: Any | None
    ) -> None:
        """A sample with these tokens takes a row. limit: the most it may have; stops: its stop
        strings, as `text/stopping.py` has them.
        """
        self._known[row] = len(tokens)
        self._tokens[row, : len(tokens)] = tokens
        self._logprob[row] = logprob
        self._limit[row] = limit
        self._stops[row] = 0 if stops is None else self._number_of(stops)

    def end(self, row: int) -> None:
        self._known[row] = _NOT_HERE

    def move(self, source: int, target: int) -> None:
        """Let a row take the place of another, and be none."""
        known = self._known[source]
        if known >= 0:
            self._tokens[target, :known] = self._tokens[source, :known]
        for array in (self._known, self._logprob, self._limit, self._stops):
            array[target] = array[source]
        self.end(source)

    def add(self, row: int, token: int, logprob: float) -> None:
        """One token more, of a step that ran when the sample had another row."""
        self._tokens[row, self._known[row]] = token
        self._known[row] += 1
        self._logprob[row] += logprob

    def count(self, row: int) -> int:
        return int(self._known[row])

    def token(self, row: int, index: int) -> int:
        """One of a row's tokens; as of a list, -1 is the last one's index."""
        return int(self._tokens[row, index if index >= 0 else self._known[row] + index])

    def tokens(self, row: int) -> list[int]:
        found: list[int] = self._tokens[row, : self._known[row]].tolist()
        return found

    def logprob(self, row: int) -> float:
        """The sum of the log-probabilities of its tokens."""
        return float(self._logprob[row])

    # -- of all rows --------------------------------------------------------------------------

    def take(
        self, index: Int32, left: Collection[int], tokens: Int64, logprobs: np.ndarray
    ) -> tuple[Int64, Int64]:
        """Add what a step drew to the rows that it drew their next token for.

        index: [n], as `DecodeStep` has it; left: rows whose samples have left them since. tokens,
        logprobs: [n]. Returns those rows, and the ones whose logits were no distribution, which
        get no token.
        """
        known = self._known[: len(index)]
        fits = index[: len(known)] == known
        fits[list(left)] = False
        bad = fits & np.isnan(logprobs)
        rows = np.flatnonzero(fits & ~bad)
        self._tokens[rows, known[rows]] = tokens[rows]
        self._logprob[rows] += logprobs[rows]
        known[rows] += 1
        return rows, np.flatnonzero(bad)

    def may_have_ended(self, rows: Int64, tokens: Int64, ended: np.ndarray) -> list[int]:
        """The rows, of those that got a token, which it may have ended. ended: by itself."""
        may = ended[rows] | (self._known[rows] >= self._limit[rows])
        stops = self._stops[rows]
        for number in np.flatnonzero(np.bincount(stops)).tolist():
            if number:
                those = np.flatnonzero(stops == number)
                may[those] |= _among(tokens[rows[those]], self._all_stops[number])
        return rows[may].tolist()

    def forget_stops(self) -> None:
        """Forget whose stop strings the rows had: there is none any more."""
        del self._all_stops[1:]
        self._numbers.clear()

    def _number_of(self, stops: Any) -> int:
        number = self._numbers.setdefault(id(stops), len(self._all_stops))
        if number == len(self._all_stops):
            self._all_stops.append(stops)
        return number


def _among(tokens: Int64, stops: Any) -> np.ndarray:
    """Which of the tokens may complete a stop string: [n] bool."""
    found = np.zeros(len(tokens), dtype=np.bool_)
    for token in set(tokens.tolist()) - stops.harmless:
        if stops.may_complete(token):
            found |= tokens == token
    return found
