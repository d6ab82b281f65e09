"""One layer of decode attention as a case: how many heads read how many keys under which tree."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from sharegen.errors import UsageError
from sharegen.kernels.fp8_blocks import exponent_bytes

BANDWIDTH = 4.2e12  # bytes a second that a copy reaches on the card of the table
MATRIX_RATE = 790e12  # operations a second that a matrix product in bf16 reaches there

_FORM = "Q/KV,PREFIX,PROBLEM,PROBLEMSxSAMPLES,SUFFIX"
_EXAMPLE = "32/8,1024,112,26x40,128"
_PATTERN = re.sub("[A-Z]+", r"(-?\\d{1,12})", _FORM)


class Tree(ABC):
    """Rows under the nodes of a tree, each with a suffix of its own.

    fp8: whether suffixes are FP8 with their scales.
    """

    num_heads: int
    num_kv_heads: int
    suffix: int
    head_size: int
    fp8: bool

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of sequences that decode together."""

    @property
    @abstractmethod
    def levels(self) -> tuple[tuple[int, int], ...]:
        """Return (nodes, tokens of each) from the root down; as many rows under each node of a
        level.
        """

    @property
    def prefix(self) -> int:
        """The number of tokens above a row's suffix."""
        return sum(tokens for _, tokens in self.levels)

    @property
    def context(self) -> int:
        """The number of tokens that a row attends to."""
        return self.prefix + self.suffix

    def stored_bytes(self, itemsize: int) -> int:
        """Return the bytes of all keys and values, each counted once. itemsize: of one number."""
        shared = sum(nodes * tokens for nodes, tokens in self.levels)
        wide = 2 * itemsize * self.head_size
        fp8 = 2 * self.head_size + exponent_bytes(1)
        own = self.suffix * self.rows * (fp8 if self.fp8 else wide)
        return self.num_kv_heads * (shared * wide + own)

    def moved_bytes(self, itemsize: int) -> int:
        """Return the bytes that a layer moves at least: keys and values once, queries and
        results.
        """
        rows = 2 * self.rows * self.num_heads * self.head_size * itemsize
        return self.stored_bytes(itemsize) + rows

    @property
    def kv_bytes(self) -> int:
        """Return the bytes of all keys and values in 16 bits, each counted once."""
        return self.stored_bytes(2)

    @property
    def operations(self) -> int:
        """Count the multiplications and additions of both matrix products over the rows' whole
        contexts.
        """
        return 4 * self.rows * self.num_heads * self.head_size * self.context

    @property
    def floor(self) -> float:
        """Microseconds below which no kernel can be on the card of the table."""
        return 1e6 * max(self.kv_bytes / BANDWIDTH, self.operations / MATRIX_RATE)


@dataclass(frozen=True)
class Case(Tree):
    """A tree of few-shot tokens, problems of some tokens -> samples with a suffix of some tokens.

    aim: microseconds that one layer should take on an H200, None outside the table.
    """

    num_heads: int
    num_kv_heads: int
    few: int
    problem: int
    problems: int
    samples: int
    suffix: int
    aim: float | None = None
    head_size: int = 128
    fp8: bool = False

    @property
    def rows(self) -> int:
        return self.problems * self.samples

    @property
    def levels(self) -> tuple[tuple[int, int], ...]:
        both = ((1, self.few), (self.problems, self.problem))
        return tuple((nodes, tokens) for nodes, tokens in both if tokens)

    def __str__(self) -> str:
        problem = self.problem or "-"
        return (
            f"{self.num_heads}/{self.num_kv_heads} {self.few}/{problem} "
            f"{self.problems}x{self.samples} +{self.suffix}{' fp8' if self.fp8 else ''}"
        )


TABLE = (
    Case(32, 8, 1024, 112, 26, 40, 128, aim=170),
    Case(32, 32, 1024, 112, 26, 40, 128, aim=570),
    Case(32, 8, 1024, 96, 32, 32, 64, aim=110),
    Case(32, 8, 8192, 64, 32, 32, 64, aim=330),
    Case(32, 32, 2400, 512, 8, 128, 64, aim=390),
    Case(8, 1, 16384, 0, 1, 1024, 128, aim=190),
    Case(8, 1, 16384, 0, 1, 4096, 128, aim=560),
    Case(32, 32, 1024, 0, 1, 32, 64, aim=35),
    Case(32, 32, 4096, 0, 1, 32, 64, aim=50),
)

FP8 = tuple(replace(TABLE[i], aim=None, fp8=True) for i in (0, 1, 3, 4, 5, 6))
"""Those of the table in which samples' own tokens count, with these in FP8."""


def parse_case(text: str) -> Case:
    """A case from Q/KV,PREFIX,PROBLEM,PROBLEMSxSAMPLES,SUFFIX. Raises UsageError."""
    numbers = re.fullmatch(_PATTERN, text)
    if numbers is None:
        raise UsageError(f"--case {text!r} is not of the form {_FORM}, like {_EXAMPLE}")
    q, kv, prefix, problem, problems, samples, suffix = map(int, numbers.groups())
    names = re.findall("[A-Z]+", _FORM)
    for name, number in zip(names, map(int, numbers.groups()), strict=True):
        least = 0 if name in ("PREFIX", "PROBLEM", "SUFFIX") else 1
        if number < least:
            raise UsageError(f"--case {text}: {name} is {number}: it must be at least {least}")
    if q % kv:
        raise UsageError(
            f"--case {text}: {q} query heads do not divide among {kv} KV heads: Q must be a "
            "multiple of KV"
        )
    if not prefix + problem + suffix:
        raise UsageError(
            f"--case {text}: PREFIX, PROBLEM and SUFFIX are 0: there is nothing to attend to, give "
            "one of them tokens"
        )
    return Case(q, kv, prefix, problem, problems, samples, suffix)
