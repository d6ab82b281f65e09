"""How many rows a batch is run with, so that its arithmetic and its graph are those of others."""

from __future__ import annotations

from collections.abc import Callable

from sharegen.engine.core.batch import FIXED_CHUNK

_LEAST_STEADY = 16  # on a GPU, where torch cuts fewer rows' sums into other parts
_LEAST_ROWS = 32  # of a few rows, or an odd end, products and vectors round otherwise


def padded_rows(count: int) -> int:
    """How many rows a batch of `count` is run with on a CPU."""
    return max(_LEAST_ROWS, -(-count // _LEAST_ROWS) * _LEAST_ROWS)


def graph_rows(count: int) -> int:
    """How many rows a batch of `count` is run with on a GPU: the size of its CUDA graph."""
    if count <= 64:
        return max(8, 1 << (count - 1).bit_length())
    step = 64 if count <= 512 else 128
    return -(-count // step) * step


def steady_rows(count: int) -> int:
    """How many rows, or tokens of prompts, a batch is run with on a GPU where a row's bits are not
    to depend on the others.
    """
    return max(_LEAST_STEADY, graph_rows(count))


def steady_chunk(asked: int) -> int:
    """The most tokens of a prefill batch there: a whole chunk has room, and so has its padding."""
    return steady_rows(max(asked, FIXED_CHUNK))


def all_sizes(padded: Callable[[int], int], most: int) -> tuple[int, ...]:
    """All numbers of rows that batches of up to `most` are run with."""
    found = [padded(1)]
    while found[-1] < most:
        found.append(padded(found[-1] + 1))
    return tuple(found)
