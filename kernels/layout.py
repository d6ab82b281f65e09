"""Which query rows attend to which shared tokens: the seam between the scheduler and attention.

Plain numpy, made by the scheduler when the tree changes. The reference reads it as it is; the
Triton path turns it into a work list (`attention_plan.py`).

Words: a *row* is a query position in the batch (one a sequence in decoding, one a token in
prefill). A *node* is a piece of prompt, shared by all rows under it. KV caches are
`[num_blocks, block_size, num_kv_heads, head_dim]`; slot = block * block_size + offset.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]

FOLLOWING = 16
"""Rows of one sample that follow each other come so many at a time, the first of each at a multiple
of it among the sample's own tokens: kernels may read the keys of these for several rows at once."""


@dataclass(frozen=True)
class SharedLayout:
    """The shared nodes of one batch, parents before children.

    order: [num_rows] the batch's rows in tree order, so that a node's rows are one slice of it.
    length: [num_nodes] tokens of the node that are read (above 0).
    position: [num_nodes] absolute position of the node's first token.
    level: [num_nodes] nodes above it in the tree: 0 for a root.
    row_start, row_end: [num_nodes] the node's rows are order[row_start:row_end] (at least one).
    block_start: [num_nodes + 1] the node's blocks are blocks[block_start[i]:block_start[i + 1]].
    blocks: block ids in token order, of a contiguous node at least the first; every node starts
        at offset 0 of its first.
    contiguous: [num_nodes] whether the node's blocks are one ascending run, so that token t of the
        node lies in slot blocks[block_start[i]] * block_size + t.
    fp8: [num_nodes] whether the node's blocks are FP8 ones (`fp8_blocks.py`), or of latents
        (`latents.py`) where the cache has such.
    alone: [num_nodes] which nodes one sample of the job's tree alone reads, whatever runs now; None
        where nobody wants to know.
    """

    order: Int32
    length: Int32
    position: Int32
    level: Int32
    row_start: Int32
    row_end: Int32
    block_start: Int32
    blocks: Int32
    contiguous: npt.NDArray[np.bool_]
    fp8: npt.NDArray[np.bool_]
    alone: npt.NDArray[np.bool_] | None = None

    @property
    def num_nodes(self) -> int:
        return len(self.length)

    def row_by_row(self) -> SharedLayout:
        """Return the same nodes, stored where they are, each named once for every row under it.

        They are read per sequence then, as PagedAttention does; a row's nodes follow each other.
        """
        counts = self.row_end - self.row_start
        node = np.repeat(np.arange(self.num_nodes), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        row = self.row_start[node] + (np.arange(len(node)) - first).astype(np.int32)
        path = np.lexsort((self.position[node], row))
        node, row = node[path], row[path]
        blocks = [self.blocks[self.block_start[i] : self.block_start[i + 1]] for i in node]
        starts = np.cumsum([0, *map(len, blocks)], dtype=np.int32)
        return SharedLayout(
            order=self.order,
            length=self.length[node],
            position=self.position[node],
            level=self.level[node],
            row_start=row,
            row_end=row + np.int32(1),
            block_start=starts,
            blocks=np.concatenate([np.zeros(0, np.int32), *blocks]),
            contiguous=self.contiguous[node],
            fp8=self.fp8[node],
        )

    def shared_levels(self, chosen: npt.NDArray[np.bool_] | None = None) -> tuple[int, ...]:
        """Levels with nodes that are above several rows, in rising order.

        chosen: [num_nodes] which nodes count; all by default.
        """
        several = self.row_end - self.row_start > 1
        if chosen is not None:
            several &= chosen
        return tuple(np.unique(self.level[several]).tolist())
