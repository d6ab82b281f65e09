"""Which shared nodes are read together by torch's flash kernel, and which rows then.

With few rows under each node, as when samples start in waves, a call for each costs more than what
it computes. So the rows under short nodes are cut into pieces, and pieces of equal shape are one
call; smaller ones are filled up where that takes less time than a call of their own. How many keys
a piece reads depends on its node alone, and a row's arithmetic on nothing else: so it is the same
in every batch.

A query row is a row's query of one head of a group: those of a row follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sharegen.kernels.reference import Node

LEAST = 16  # query rows of a node alone come in multiples of this, keys at least so many
PIECE = 32  # query rows, at most
_STEP = 32  # keys of short nodes come in multiples of about this
_SHORT = 128  # keys
_GATHERED = 1 << 18  # numbers of keys at a time: a MiB, and as much of values
_CALL = 1 << 13  # query rows times keys that take as long as a call

_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pieces:
    """Some rows of short nodes, as many in each piece.

    queries: [pieces * rows] query rows; where there are fewer, others fill it up. blocks: [pieces
    * blocks read]. bias: [pieces, 1, 1, keys], 0 for a key of the node, -inf beyond its last.
    """

    queries: Tensor
    blocks: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Alone:
    """A node that is read by itself. first, count: of its query rows."""

    node: Node
    first: int
    count: int

    @property
    def padded(self) -> int:
        return self.count + -self.count % LEAST


@dataclass(frozen=True)
class Level:
    """The nodes of a level of the tree.

    few: with too few keys for the kernel. place: [query rows] where the result of each is: 0 is
    that of no node, those of all pieces follow, then those of each node alone, padded. None: one
    node has all of them.
    """

    pieces: list[Pieces]
    alone: list[Alone]
    few: list[Node]
    place: Tensor | None


_Piece = tuple[int, int, Node]  # first query row, how many, their node


def pack(
    nodes: Sequence[Node],
    num_rows: int,
    group: int,
    block_size: int,
    token_numbers: int,
    multiple: int,
) -> Level:
    """Pack the nodes of one level into the calls that read them.

    group: query heads of a KV head. token_numbers: of one token's keys. multiple: query rows of a
    piece come in multiples of this; it divides PIECE.
    """
    widths: dict[int, dict[int, list[_Piece]]] = {}
    alone, few = [], []
    for node in nodes:
        first, end = node.rows.start * group, node.rows.stop * group
        if not node.fp8 and node.length <= _SHORT:
            of_width = widths.setdefault(_width(node.length, block_size), {})
            for at in range(first, end, PIECE):
                count = min(PIECE, end - at)
                of_width.setdefault(count + -count % multiple, []).append((at, count, node))
        elif node.length >= LEAST:
            alone.append(Alone(node, first, end - first))
        else:
            few.append(node)
    if not widths and len(alone) == 1 and alone[0].count == num_rows * group:
        return Level([], alone, few, None)
    place = np.zeros(num_rows * group, dtype=np.int64)
    used = 1
    pieces = []
    calls = [(width, *call) for width, by_rows in widths.items() for call in _calls(by_rows, width)]
    for width, rows, of_shape in calls:
        most = max(1, _GATHERED // (width * token_numbers))
        for part in (of_shape[i : i + most] for i in range(0, len(of_shape), most)):
            inside = np.arange(rows)
            queries = np.array([at for at, _, _ in part])[:, None] + inside
            has = inside < np.array([count for _, count, _ in part])[:, None]
            place[queries[has]] = used + np.flatnonzero(has)
            used += has.size
            queries = np.minimum(queries, len(place) - 1)
            pieces.append(_pieces(queries, [node for _, _, node in part], width, block_size))
    for each in alone:
        place[each.first : each.first + each.count] = used + np.arange(each.count)
        used += each.padded
    return Level(pieces, alone, few, torch.from_numpy(place))


def _calls(by_rows: dict[int, list[_Piece]], width: int) -> list[tuple[int, list[_Piece]]]:
    """Which pieces are read together, and with how many query rows each. by_rows: by their own."""
    calls: list[tuple[int, list[_Piece]]] = []
    for rows in sorted(by_rows, reverse=True):
        pieces = by_rows[rows]
        if calls and (calls[-1][0] - rows) * len(pieces) * width < _CALL:
            calls[-1][1].extend(pieces)
        else:
            calls.append((rows, list(pieces)))
    return calls


def _pieces(queries: _Int64, nodes: list[Node], width: int, block_size: int) -> Pieces:
    blocks = np.zeros((len(nodes), width // block_size), dtype=np.int64)
    for i, node in enumerate(nodes):
        blocks[i, : len(node.blocks)] = node.blocks
    length = np.array([node.length for node in nodes])
    bias = np.where(np.arange(width) < length[:, None], 0.0, -np.inf).astype(np.float32)
    return Pieces(
        torch.from_numpy(queries.ravel()),
        torch.from_numpy(blocks.ravel()),
        torch.from_numpy(bias)[:, None, None],
    )


def _width(length: int, block_size: int) -> int:
    """Keys that are read of a node: whole blocks, and a multiple of some."""
    step = -(-_STEP // block_size) * block_size
    return -(-length // step) * step
