"""How many rows a batch is run with, so that its arithmetic and its graph are those of others."""

from __future__ import annotations

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
