"""Many lists of whole numbers as one array: the prompts of a job, where each is split.

A million prompts of a thousand tokens are 4 GB. What is that large lies in a file without a name,
in the folder that TMPDIR names: the system keeps in memory what of it is in use, and it is gone
with the process, however that ends.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, overload

import numpy as np
import numpy.typing as npt

from sharegen.errors import DataError

Int32s = npt.NDArray[np.int32]

IN_MEMORY = 1 << 28  # bytes; more lie in a file
_AT_ONCE = 1 << 22  # bytes of a write


class Row(Sequence[int]):
    """A list that is read where it lies; an array of numpy takes no copy, and a pickle does."""

    __slots__ = ("_end", "_numbers", "_start")

    def __init__(self, numbers: Int32s, start: int, end: int) -> None:
        self._numbers = numbers
        self._start = start
        self._end = end

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._numbers[self._start : self._end], dtype, copy=copy)

    def __len__(self) -> int:
        return self._end - self._start

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> array[int]: ...
    def __getitem__(self, place: int | slice) -> int | array[int]:
        found = self._numbers[self._start : self._end][place]
        return array("i", found.tobytes()) if isinstance(place, slice) else int(found)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers[self._start : self._end].tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return array, ("i", self._numbers[self._start : self._end].tobytes())


class Ragged(Sequence[Row]):
    """Lists of 32-bit numbers, end to end.

    Raises DataError where the file cannot be written.
    """

    def __init__(self, lists: Iterable[Sequence[int] | Int32s]) -> None:
        self._ends = array("q", [0])
        tokens = array("i")
        file: IO[bytes] | None = None
        for numbers in lists:
            self._ends.append(self._ends[-1] + len(numbers))
            tokens.frombytes(np.asarray(numbers, np.int32).tobytes())
            if len(tokens) * tokens.itemsize > (IN_MEMORY if file is None else _AT_ONCE):
                file = _written(tokens, file)
                tokens = array("i")
        if file is None:
            self._numbers: Int32s = np.asarray(tokens)
            return
        with _written(tokens, file):
            self._numbers = np.asarray(np.memmap(file, np.int32, mode="c"))

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        return Row(self._numbers, self._ends[place], self._ends[place + 1])


def _written(numbers: array[int], file: IO[bytes] | None) -> IO[bytes]:
    """The file, or a new one, with the numbers at its end."""
    try:
        file = file or tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is mapped
        numbers.tofile(file)
        file.flush()
    except OSError as error:
        raise DataError(
            f"{tempfile.gettempdir()}: the token ids cannot be kept there: {error.strerror}: "
            "name another folder by TMPDIR"
        ) from None
    return file
