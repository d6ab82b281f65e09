"""Random trees of shared tokens in random caches, and their attention the long way, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.tiles import AttentionShape

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE.type == "cuda" else [])
TOLERANCE = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def make_shape(
    num_heads: int, num_kv_heads: int, dtype: torch.dtype, *, key_size: int = 64,
    value_size: int = 64, block_size: int = 16,
) -> AttentionShape:  # fmt: skip
    return AttentionShape(num_heads, num_kv_heads, key_size, value_size, block_size, dtype)


@dataclass
class Batch:
    """Rows under a tree, with everything that a decoding step needs and where each token lies.

    slots[row]: [context] the slot of each token that the row may see, its own last.
    """

    shape: AttentionShape
    layout: SharedLayout
    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    prefix_length: torch.Tensor
    position: torch.Tensor
    slots: list[np.ndarray]


def random_caches(
    shape: AttentionShape, num_blocks: int, generator: torch.Generator, offset: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Caches of NaN in one pool, keys and values interleaved, as an engine may lay them out."""
    width = shape.key_size + shape.value_size
    pool = torch.full(
        (num_blocks, shape.block_size, shape.num_kv_heads, width), float("nan"),
        dtype=shape.dtype, device=DEVICE,
    )  # fmt: skip
    return pool[..., : shape.key_size], pool[..., shape.key_size :]


def random_tree(
    rng: np.random.Generator, num_rows: int, depth: int = 4
) -> list[tuple[int, int, int]]:
    """Nodes of up to so many levels over some of the rows, as `random_batch` takes them."""
    nodes: list[tuple[int, int, int]] = []

    def grow(first: int, end: int, level: int) -> None:
        while first < end and level < depth:
            cut = int(rng.integers(first, end)) + 1
            if rng.random() < 0.7:
                nodes.append((int(rng.integers(1, 60)), first, cut))
                grow(first, cut, level + 1)
            first = cut

    grow(0, num_rows, 0)
    return nodes


def random_batch(
    shape: AttentionShape,
    nodes: list[tuple[int, int, int]],
    suffixes: list[int],
    *,
    padding: int = 0,
    scattered: tuple[int, ...] = (),
    offset: float = 0.0,
    seed: int = 0,
) -> Batch:
    """nodes: (length, first row, end row) in tree order, parents first; suffixes: tokens of a row.

    Rows are shuffled among the batch's slots; `padding` dead rows follow them. Slots that hold no
    token hold NaN. offset: keys and values are centred there instead of at zero.
    """
    rng = np.random.default_rng(seed)
    num_live, size = len(suffixes), shape.block_size
    per_node = [-(-length // size) for length, _, _ in nodes]
    per_suffix = [-(-length // size) for length in suffixes]
    free = list(range(sum(per_node), sum(per_node) + sum(per_suffix) + 2 * sum(per_node) + 3))
    rng.shuffle(free)
    blocks: list[int] = []
    low = 0
    for i, count in enumerate(per_node):
        if i in scattered:
            blocks += [free.pop() for _ in range(count)]
        else:
            blocks += range(low, low + count)
            low += count

    order = rng.permutation(num_live).astype(np.int32)
    path: list[list[int]] = [[] for _ in range(num_live)]  # in tree order
    above: list[int] = []
    level: list[int] = []
    for i, (_, first, end) in enumerate(nodes):
        above.append(sum(nodes[j][0] for j in path[first]))
        level.append(len(path[first]))
        for row in range(first, end):
            path[row].append(i)
    layout = SharedLayout(
        order=order,
        length=np.array([n[0] for n in nodes], np.int32),
        position=np.array(above, np.int32),
        level=np.array(level, np.int32),
        row_start=np.array([n[1] for n in nodes], np.int32),
        row_end=np.array([n[2] for n in nodes], np.int32),
        block_start=np.cumsum([0, *per_node]).astype(np.int32),
        blocks=np.array(blocks, np.int32),
        contiguous=np.array([i not in scattered for i in range(len(nodes))], bool),
        fp8=np.zeros(len(nodes), bool),
    )

    num_rows = num_live + padding
    table = rng.integers(0, 3, (num_rows, max([*per_suffix, 1]) + 1)).astype(np.int32)
    prefix, position = np.zeros(num_rows, np.int32), np.full(num_rows, -1, np.int32)
    slots: list[np.ndarray] = [np.zeros(0, np.int64) for _ in range(num_rows)]
    offsets = np.arange(size)
    for i, row in enumerate(order):
        own = np.array([free.pop() for _ in range(per_suffix[i])], np.int64)
        table[row, : len(own)] = own
        prefix[row] = sum(nodes[j][0] for j in path[i])
        position[row] = prefix[row] + suffixes[i] - 1
        parts = [
            (np.array(blocks[layout.block_start[j] : layout.block_start[j + 1]]), nodes[j][0])
            for j in path[i]
        ] + [(own, suffixes[i])]
        slots[row] = np.concatenate(
            [(b[:, None] * size + offsets).ravel()[:length] for b, length in parts]
        ).astype(np.int64)

    generator = torch.Generator().manual_seed(seed)
    k_cache, v_cache = random_caches(shape, max([*free, *blocks, int(table.max())]) + 2, generator)
    used = np.unique(np.concatenate(slots))
    for cache in (k_cache, v_cache):
        values = torch.randn(len(used), *cache.shape[2:], generator=generator) + offset
        cache.view(-1, *cache.shape[2:])[torch.from_numpy(used).to(DEVICE)] = values.to(cache)
    q = torch.randn(num_rows, shape.num_heads, shape.key_size, generator=generator)
    return Batch(
        shape, layout, q.to(k_cache), k_cache, v_cache,
        *(torch.from_numpy(a).to(DEVICE) for a in (table, prefix, position)), slots,
    )  # fmt: skip


def prompt_layout(
    nodes: list[tuple[int, int, int]],
    chunks: list[tuple[list[int], int]],
    block_size: int,
    scattered: bool = False,
) -> tuple[SharedLayout, np.ndarray]:
    """Chunks of prompts packed in order below nodes, and where each begins: [num_chunks + 1].

    nodes: (length, first chunk, end chunk), in blocks from the second on, or those in reverse when
    scattered; chunks: (nodes above, tokens). All nodes start at position 0 or after the one before
    them in a chunk's list.
    """
    starts = np.cumsum([0, *(length for _, length in chunks)]).astype(np.int32)
    block_start = np.cumsum([0, *(-(-length // block_size) for length, _, _ in nodes)])
    blocks = np.arange(1, block_start[-1] + 1, dtype=np.int32)
    above = [0] * len(nodes)
    for path, _ in chunks:
        for i, node in enumerate(path):
            above[node] = sum(nodes[j][0] for j in path[:i])
    layout = SharedLayout(
        order=np.arange(starts[-1], dtype=np.int32),
        length=np.array([n[0] for n in nodes], np.int32),
        position=np.array(above, np.int32),
        level=np.zeros(len(nodes), np.int32),
        row_start=starts[np.array([n[1] for n in nodes], int)],
        row_end=starts[np.array([n[2] for n in nodes], int)],
        block_start=block_start.astype(np.int32),
        blocks=blocks[::-1].copy() if scattered else blocks,
        contiguous=np.full(len(nodes), not scattered),
        fp8=np.zeros(len(nodes), bool),
    )
    return layout, starts


def naive_row(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, position: int, *, scale: float,
    window: int | None = None, attention_chunk: int | None = None, softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """One query [Hq, Dk] at `position` against the context k, v [context, Hkv, *], in float64."""
    group = q.shape[0] // k.shape[1]
    k = k.double().repeat_interleave(group, dim=1)
    v = v.double().repeat_interleave(group, dim=1)
    s = torch.einsum("hd,thd->ht", q.double(), k) * scale
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    at = torch.arange(len(k), device=q.device)
    if window is not None:
        s[:, at <= position - window] = float("-inf")
    if attention_chunk is not None:
        s[:, at < position // attention_chunk * attention_chunk] = float("-inf")
    if sinks is not None:
        s = torch.cat([s, sinks.double()[:, None]], dim=1)
        v = torch.cat([v, torch.zeros_like(v[:1])])
    if s.shape[1] == 0:
        return q.new_zeros(q.shape[0], v.shape[-1], dtype=torch.float64)
    return torch.einsum("ht,thd->hd", torch.softmax(s, dim=1), v)


def naive_decode(batch: Batch, **options: object) -> torch.Tensor:
    """[rows, Hq, Dv] float64: each row against its whole context."""
    rows = []
    keys = batch.k_cache.view(-1, *batch.k_cache.shape[2:])
    values = batch.v_cache.view(-1, *batch.v_cache.shape[2:])
    for row, slots in enumerate(batch.slots):
        index = torch.from_numpy(slots).to(DEVICE)
        position = int(batch.position[row])
        rows.append(naive_row(batch.q[row], keys[index], values[index], position, **options))
    return torch.stack(rows)


def guarded(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """An output of NaN inside a larger buffer of NaN, and the buffer."""
    whole = torch.full((shape[0] + 2, *shape[1:]), float("nan"), dtype=dtype, device=DEVICE)
    return whole[1:-1], whole


def assert_guard(whole: torch.Tensor) -> None:
    """The buffer around a guarded output is as it was."""
    assert whole[0].isnan().all() and whole[-1].isnan().all()


def assert_close(out: torch.Tensor, expected: torch.Tensor, scale: float = 1.0) -> None:
    """The largest error is below the dtype's tolerance times the size of the values."""
    assert out.isfinite().all()
    error = (out.double() - expected).abs().max().item()
    assert error <= TOLERANCE[out.dtype] * scale, f"largest error {error:.2e}"
