"""From the tree to a batch: prompt chunks side by side, and who reads which node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np

from sharegen.engine.cache.prefix_tree import Node
from sharegen.engine.cache.prompt_logprobs import AskedRow, asked_of
from sharegen.engine.cache.stored_kv import NodeKV
from sharegen.engine.core.batch import (
    Int32,
    Int64,
    MixedChunks,
    OutputRows,
    PrefillBatch,
    WantedLogprobs,
)
from sharegen.engine.schedule.sequence import Sequence, SequenceGroup
from sharegen.engine.schedule.step import Chunk, PrefillStep
from sharegen.kernels.layout import SharedLayout


@dataclass(frozen=True)
class Queries:
    """Rows that read the first `length` tokens of `node` and all of its ancestors."""

    node: Node
    rows: Seq[int] | Int64
    length: int


def prefill_step(
    chunks: list[Chunk],
    groups: list[SequenceGroup],
    stored: Mapping[Node, NodeKV],
    block_size: int,
    mixed: Callable[[list[Chunk]], list[MixedChunks]] = lambda chunks: [],
) -> PrefillStep:
    """The chunks packed one after the other; groups: whose prompts end with one of them.

    mixed: how mixers take them.
    """
    starts = np.cumsum([0] + [chunk.end - chunk.start for chunk in chunks])
    tokens, positions, slots, fp8 = [], [], [], []
    queries = []
    last_row: dict[Node, int] = {}
    asked: list[AskedRow] = []
    asked_rows: list[int] = []
    for chunk, first in zip(chunks, starts[:-1].tolist(), strict=True):
        node, kv = chunk.node, stored[chunk.node]
        within = np.arange(chunk.start, chunk.end, dtype=np.int64)
        tokens.append(node.tokens[chunk.start : chunk.end])
        positions.append(within + node.position)
        slots.append(kv.places[within // block_size].astype(np.int64) * block_size
                     + within % block_size)  # fmt: skip
        fp8.append(np.full(len(within), kv.fp8))
        rows = range(first, first + len(within))
        queries.append(Queries(node, rows, chunk.start))
        last_row[node] = rows[-1]
        if kv.logprobs is not None:
            wanted = asked_of(kv.logprobs, node, chunk.start, chunk.end)
            asked += wanted
            asked_rows += [first + place.offset - chunk.start for place in wanted]
    drawings = [group.drawing(sample) for group in groups for sample in group.drawn]
    counts = [len(group.drawn) for group in groups]
    batch = PrefillBatch(
        token_ids=np.concatenate(tokens).astype(np.int64),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        fp8=np.concatenate(fp8),
        chunk_starts=starts.tolist(),
        layout=shared_layout(queries, stored),
        logit_rows=np.array([last_row[group.leaf] for group in groups], dtype=np.int64),
        drawings=drawings,
        prompts=np.repeat(np.arange(len(groups)), counts),
        logprobs=_wanted(asked, asked_rows),
        mixed=mixed(chunks),
    )
    return PrefillStep(batch, chunks, groups, asked)


def fill_step(
    parts: Seq[tuple[Sequence, int, int]],
    stored: Mapping[Node, NodeKV],
    block_size: int,
    latents: bool = False,
    tables: Tables | None = None,
) -> PrefillStep:
    """Outputs [start, end) of samples, into their blocks once more; nothing is drawn.

    parts: (sample, start, end). latents: whether these are blocks of such. tables: where the
    outputs are rows of a decoding step, and what of theirs.
    """
    starts = np.cumsum([0] + [end - start for _, start, end in parts])
    tokens, positions, slots, queries = [], [], [], []
    for (sequence, start, end), first in zip(parts, starts[:-1].tolist(), strict=True):
        leaf, within = sequence.leaf, np.arange(start, end, dtype=np.int64)
        blocks = np.array(sequence.blocks, dtype=np.int64)
        tokens.append(np.array(sequence.tokens[start:end], dtype=np.int64))
        positions.append(within + leaf.end)
        slots.append(blocks[within // block_size] * block_size + within % block_size)
        queries.append(Queries(leaf, range(first, first + len(within)), leaf.length))
    nothing = np.empty(0, dtype=np.int64)
    batch = PrefillBatch(
        token_ids=np.concatenate(tokens),
        positions=np.concatenate(positions),
        slots=np.concatenate(slots),
        fp8=np.full(starts[-1], latents),
        chunk_starts=starts.tolist(),
        layout=shared_layout(queries, stored, by_tree=tables is not None and tables.by_tree),
        logit_rows=nothing,
        drawings=[],
        prompts=nothing,
        logprobs=None,
        mixed=[],
        rows=None if tables is None else _rows_of(parts, tables),
    )
    return PrefillStep(batch, [], [], [])


@dataclass(frozen=True)
class Tables:
    """Block tables of the rows of a decoding step: how wide they are, and what is in an empty
    place. by_tree: as `shared_layout` takes it.
    """

    width: int
    scratch_block: int
    by_tree: bool


def _rows_of(parts: Seq[tuple[Sequence, int, int]], tables: Tables) -> OutputRows:
    counts = [end - start for _, start, end in parts]
    blocks = np.full((len(parts), tables.width), tables.scratch_block, dtype=np.int32)
    for row, (sequence, _, _) in zip(blocks, parts, strict=True):
        row[: len(sequence.blocks)] = sequence.blocks
    prefix = np.array([sequence.leaf.end for sequence, _, _ in parts], dtype=np.int32)
    return OutputRows(np.repeat(prefix, counts), np.repeat(blocks, counts, axis=0))


def one_by_one(chunks: list[Chunk]) -> list[MixedChunks]:
    """Take each chunk by itself: so its arithmetic is the same in any batch."""
    starts = _starts(chunks)
    return [_mixed([chunk], [start]) for chunk, start in zip(chunks, starts, strict=True)]


def equals_together(chunks: list[Chunk]) -> list[MixedChunks]:
    """Chunks of equal length at once, as far as none goes on from another."""
    turn: dict[int, int] = {}  # by slot: from which turn on its state is there
    together: dict[tuple[int, int], list[tuple[Chunk, int]]] = {}  # by turn and length
    for chunk, start in zip(chunks, _starts(chunks), strict=True):
        read, write = chunk.states
        now = turn.get(read, 0)
        turn[write] = now + 1
        together.setdefault((now, chunk.end - chunk.start), []).append((chunk, start))
    return [_mixed(*zip(*together[key], strict=True)) for key in sorted(together)]


def _starts(chunks: Seq[Chunk]) -> list[int]:
    return np.cumsum([0, *(chunk.end - chunk.start for chunk in chunks[:-1])]).tolist()


def _mixed(chunks: Seq[Chunk], starts: Seq[int]) -> MixedChunks:
    read, write = np.array([chunk.states for chunk in chunks], dtype=np.int64).T
    return MixedChunks(
        np.array(starts, dtype=np.int64), chunks[0].end - chunks[0].start, read, write
    )


def _wanted(asked: list[AskedRow], rows: list[int]) -> WantedLogprobs | None:
    if not asked:
        return None
    tokens = np.array([place.token for place in asked], dtype=np.int64)
    top = max(place.known.top for place in asked)
    return WantedLogprobs(np.array(rows, dtype=np.int64), tokens, top)


def shared_layout(
    queries: list[Queries], stored: Mapping[Node, NodeKV], *, by_tree: bool = False
) -> SharedLayout:
    """Order the rows by tree path, so that each node's rows are one slice, and list the nodes.

    stored: where the nodes lie. by_tree: whether the layout says which nodes are `alone`.
    """
    own: dict[Node, list[Queries]] = {}
    for query in queries:
        own.setdefault(query.node, []).append(query)
    roots, children = _active_nodes(own)
    order: list[Seq[int] | Int64] = []
    placed = 0  # rows, in `order`
    entries: list[tuple[Node, int, int, int]] = []  # node, tokens read, first row, row after last
    stack: list[tuple[Node, int]] = [(root, -1) for root in reversed(roots)]
    while stack:
        node, entry = stack.pop()
        if entry >= 0:  # all rows below have their place by now
            _, length, start, _ = entries[entry]
            entries[entry] = (node, length, start, placed)
            continue
        for query in own.get(node, ()):
            # Chunks of the node itself see it up to where they start.
            if query.length < node.length:
                start = placed
                order.append(query.rows)
                placed += len(query.rows)
                if query.length > 0:
                    entries.append((node, query.length, start, placed))
        start = placed
        for query in own.get(node, ()):
            if query.length == node.length:
                order.append(query.rows)
                placed += len(query.rows)
        if placed > start or node in children:
            stack.append((node, len(entries)))
            entries.append((node, node.length, start, start))
        stack.extend((child, -1) for child in reversed(children.get(node, ())))
    layout = _as_arrays(order, entries, stored)
    if not by_tree:
        return layout
    return replace(layout, alone=np.array([entry[0].alone for entry in entries], dtype=np.bool_))


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


def _joined(rows: list[Seq[int] | Int64]) -> Int32:
    none = np.empty(0, dtype=np.int32)
    return np.concatenate([none, *rows], dtype=np.int32, casting="same_kind")


def _as_arrays(
    order: list[Seq[int] | Int64],
    entries: list[tuple[Node, int, int, int]],
    stored: Mapping[Node, NodeKV],
) -> SharedLayout:
    nodes = [entry[0] for entry in entries]
    # A contiguous node is read from its first block on: the others need no listing.
    placed = [stored[node] for node in nodes]
    blocks = [kv.places[:1] if kv.contiguous else kv.places for kv in placed]
    rest = np.array([entry[1:] for entry in entries], dtype=np.int32).reshape(-1, 3)
    level: dict[Node | None, int] = {None: -1}
    for node in nodes:  # parents first
        level[node] = level[node.parent] + 1
    return SharedLayout(
        order=_joined(order),
        length=rest[:, 0].copy(),
        position=np.array([node.position for node in nodes], dtype=np.int32),
        level=np.array([level[node] for node in nodes], dtype=np.int32),
        row_start=rest[:, 1].copy(),
        row_end=rest[:, 2].copy(),
        block_start=np.cumsum([0, *map(len, blocks)], dtype=np.int32),
        blocks=np.concatenate([np.empty(0, dtype=np.int32), *blocks]),
        contiguous=np.array([kv.contiguous for kv in placed], dtype=np.bool_),
        fp8=np.array([kv.fp8 for kv in placed], dtype=np.bool_),
    )
