"""One step's work as the scheduler hands it to the runner: plain numpy, no tensors."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.prompt_logprobs import WantedLogprobs, wanted_of
from sharegen.engine.schedule.sequence import Group, Sequence
from sharegen.kernels.layout import SharedLayout

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a node, prefilled in one go."""

    node: Node
    start: int
    end: int


@dataclass
class PrefillPlan:
    """What a prefill batch is going to hold; tokens, samples: of its chunks and of its groups."""

    chunks: list[Chunk] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    tokens: int = 0
    samples: int = 0

    def add(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.tokens += chunk.end - chunk.start


@dataclass(frozen=True)
class PrefillBatch:
    """Packed chunks of prompt nodes, parents before children.

    token_ids, positions, slots: [T] the tokens, their positions and where their KV goes.
    chunk_starts: [num_chunks + 1] rows of the chunks. layout: what the rows attend to besides
    their own chunk. groups: the requests whose first tokens are drawn from this batch, and
    logit_rows: [num_groups] the row of each one's last prompt token. logprobs: what is wanted of
    the prompts' own tokens, or None. chunks: [num_chunks] of which nodes.
    """

    token_ids: Int64
    positions: Int64
    slots: Int64
    chunk_starts: list[int]
    layout: SharedLayout
    groups: list[Group]
    logit_rows: Int64
    logprobs: WantedLogprobs | None
    chunks: list[Chunk]


@dataclass(frozen=True)
class DecodeBatch:
    """One token for every running sequence; rows are places in the batch.

    num_rows: rows up to the last live one. sequences: [num_rows] who sits in each row (None: a
    hole). index: [num_rows] which of its output tokens the row draws in this step.
    moves: (from, to) rows to copy first. changed: rows whose tables, lengths or sequence are new,
    holes included; block_tables [changed, max_blocks], prefix_length, position and last_position
    (of the last input that the row may have) [changed] are theirs.
    growth: (row, column, block) entries added to the block tables of other rows.
    forced: (row, token, position) inputs that replace the token drawn last: a sequence that just
    joined, or replays what it had drawn before it was preempted.
    layout: the shared nodes, or None where they are those of the step before.
    """

    num_rows: int
    sequences: list[Sequence | None]
    index: list[int]
    moves: list[tuple[int, int]]
    changed: list[int]
    block_tables: Int32
    prefix_length: Int32
    position: Int32
    last_position: Int32
    growth: list[tuple[int, int, int]]
    forced: list[tuple[int, int, int]]
    layout: SharedLayout | None


@dataclass(frozen=True)
class Queries:
    """Rows that read the first `length` tokens of `node` and all of its ancestors."""

    node: Node
    rows: Seq[int]
    length: int


def prefill_batch(plan: PrefillPlan, block_size: int) -> PrefillBatch:
    """The plan's chunks packed one after the other."""
    chunks, groups = plan.chunks, plan.groups
    starts = np.cumsum([0] + [chunk.end - chunk.start for chunk in chunks])
    tokens, positions, slots = [], [], []
    queries = []
    last_row: dict[Node, int] = {}
    for chunk, first in zip(chunks, starts[:-1].tolist(), strict=True):
        within = np.arange(chunk.start, chunk.end, dtype=np.int64)
        blocks = np.asarray(chunk.node.blocks)
        tokens.append(chunk.node.tokens[chunk.start : chunk.end])
        positions.append(within + chunk.node.position)
        slots.append(blocks[within // block_size] * block_size + within % block_size)
        rows = range(first, first + len(within))
        queries.append(Queries(chunk.node, rows, chunk.start))
        last_row[chunk.node] = rows[-1]
    return PrefillBatch(
        token_ids=np.concatenate(tokens).astype(np.int64),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        chunk_starts=starts.tolist(),
        layout=shared_layout(queries),
        groups=groups,
        logit_rows=np.array([last_row[group.leaf] for group in groups], dtype=np.int64),
        logprobs=wanted_of(chunks, starts[:-1].tolist()),
        chunks=chunks,
    )


def shared_layout(queries: list[Queries]) -> SharedLayout:
    """Order the rows by tree path, so that each node's rows are one slice, and list the nodes."""
    own: dict[Node, list[Queries]] = {}
    for query in queries:
        own.setdefault(query.node, []).append(query)
    roots, children = _active_nodes(own)
    order: list[int] = []
    entries: list[tuple[Node, int, int, int]] = []  # node, tokens read, first row, row after last
    stack: list[tuple[Node, int]] = [(root, -1) for root in reversed(roots)]
    while stack:
        node, entry = stack.pop()
        if entry >= 0:  # all rows below have their place by now
            _, length, start, _ = entries[entry]
            entries[entry] = (node, length, start, len(order))
            continue
        for query in own.get(node, ()):
            if (
                query.length < node.length
            ):  # chunks of the node itself see it up to where they start
                start = len(order)
                order.extend(query.rows)
                if query.length > 0:
                    entries.append((node, query.length, start, len(order)))
        start = len(order)
        for query in own.get(node, ()):
            if query.length == node.length:
                order.extend(query.rows)
        if len(order) > start or node in children:
            stack.append((node, len(entries)))
            entries.append((node, node.length, start, start))
        stack.extend((child, -1) for child in reversed(children.get(node, ())))
    return _as_arrays(order, entries)


def _active_nodes(own: dict[Node, list[Queries]]) -> tuple[list[Node], dict[Node, list[Node]]]:
    """The roots, and the children of each node, that have queries at or below them."""
    roots: list[Node] = []
    children: dict[Node, list[Node]] = {}
    seen: set[Node] = set()
    for node in own:
        while node not in seen:
            seen.add(node)
            if node.parent is None:
                roots.append(node)
                break
            children.setdefault(node.parent, []).append(node)
            node = node.parent
    return roots, children


def _as_arrays(order: list[int], entries: list[tuple[Node, int, int, int]]) -> SharedLayout:
    nodes = [entry[0] for entry in entries]
    counts = [len(node.blocks) for node in nodes]
    rest = np.array([entry[1:] for entry in entries], dtype=np.int32).reshape(-1, 3)
    level: dict[Node | None, int] = {None: -1}
    for node in nodes:  # parents first
        level[node] = level[node.parent] + 1
    return SharedLayout(
        order=np.array(order, dtype=np.int32),
        length=rest[:, 0].copy(),
        position=np.array([node.position for node in nodes], dtype=np.int32),
        level=np.array([level[node] for node in nodes], dtype=np.int32),
        row_start=rest[:, 1].copy(),
        row_end=rest[:, 2].copy(),
        block_start=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        blocks=np.array([b for node in nodes for b in node.blocks], dtype=np.int32),
        contiguous=np.array([node.contiguous for node in nodes], dtype=np.bool_),
    )


_LEAST_ROWS = 16  # a matrix product treats few rows, and an odd end, apart and rounds otherwise


def padded_rows(count: int) -> int:
    """How many rows a batch of `count` is run with on a CPU."""
    return max(_LEAST_ROWS, -(-count // _LEAST_ROWS) * _LEAST_ROWS)


def graph_rows(count: int) -> int:
    """How many rows a batch of `count` is run with on a GPU: the size of its CUDA graph."""
    if count <= 64:
        return max(8, 1 << (count - 1).bit_length())
    step = 64 if count <= 512 else 128
    return -(-count // step) * step
