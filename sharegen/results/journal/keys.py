"""Sets of sample keys, a bitmap a problem: a job of millions of samples keeps one in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet, Sequence
from typing import NamedTuple, Self


class Key(NamedTuple):
    """What makes a sample one of a kind; a finished key is never sampled again."""

    problem_id: str
    prompt_hash: str | None
    sample: int | None


_PAGE = 1024  # samples of a problem to a bitmap, so that a large index alone costs no large one
_Page = tuple[str, str | None, int]  # of a problem; -1 where there is no sample: a bad row


class Keys(MutableSet[Key]):
    """A set of keys, in which those of one problem take a bit each."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._pages: dict[_Page, int] = {}
        self._count = 0
        for key in keys:
            self.add(key)

    def add(self, value: Key) -> None:
        page, bit = _place(value)
        bits = self._pages.get(page, 0)
        if not bits & bit:
            self._pages[page] = bits | bit
            self._count += 1

    def discard(self, value: Key) -> None:
        page, bit = _place(value)
        bits = self._pages.get(page, 0)
        if bits & bit:
            self._count -= 1
            if bits == bit:
                del self._pages[page]
            else:
                self._pages[page] = bits ^ bit

    def __contains__(self, value: object) -> bool:
        page, bit = _place(value)  # type: ignore[arg-type]
        return bool(self._pages.get(page, 0) & bit)

    def __iter__(self) -> Iterator[Key]:
        for (problem_id, prompt_hash, page), bits in self._pages.items():
            if page < 0:
                yield Key(problem_id, prompt_hash, None)
            while page >= 0 and bits:
                lowest = bits & -bits
                yield Key(problem_id, prompt_hash, page * _PAGE + lowest.bit_length() - 1)
                bits ^= lowest

    def __len__(self) -> int:
        return self._count

    def __ior__(self, other: Iterable[Key]) -> Self:  # type: ignore[override,misc]
        if not isinstance(other, Keys):
            for key in other:
                self.add(key)
            return self
        for page, bits in other._pages.items():
            mine = self._pages.get(page, 0)
            self._count += (bits & ~mine).bit_count()
            self._pages[page] = mine | bits
        return self

    def missing(self, problem_id: str, prompt_hash: str | None, samples: range) -> Sequence[int]:
        """Return those of a problem's samples that are not in the set: the range itself where all
        are.
        """
        pages = range(samples.start // _PAGE, -(-samples.stop // _PAGE))
        if not any((problem_id, prompt_hash, page) in self._pages for page in pages):
            return samples  # no list of a million
        return [i for i in samples if Key(problem_id, prompt_hash, i) not in self]

    def __repr__(self) -> str:
        return f"Keys({list(self)})"


def _place(key: Key) -> tuple[_Page, int]:
    problem_id, prompt_hash, sample = key
    if sample is None:
        return (problem_id, prompt_hash, -1), 1
    return (problem_id, prompt_hash, sample // _PAGE), 1 << sample % _PAGE
