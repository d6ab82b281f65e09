"""The tensors of a case of attention: random keys, values and queries, and who reads what."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from sharegen.bench.attention_case import Tree
from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.reference import read_fp8, store_fp8
from sharegen.kernels.tiles import AttentionShape

_STORED_AT_ONCE = 4096  # blocks


def shape_of(case: Tree, dtype: torch.dtype, block_size: int = 16) -> AttentionShape:
    """What the kernels' plans of a case depend on."""
    return AttentionShape(
        case.num_heads, case.num_kv_heads, case.head_size, case.head_size, block_size, dtype
    )


class Tensors:
    """The tensors of a case: the shared nodes at the caches' low end, the suffixes mixed."""

    def __init__(
        self,
        case: Tree,
        device: torch.device,
        block_size: int = 16,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.case = case
        self.shape = shape_of(case, dtype, block_size)
        self.layout = _layout(case, block_size)
        rng = np.random.default_rng(0)
        low, per_row = len(self.layout.blocks), max(1, -(-case.suffix // block_size))
        table = low + rng.permutation(case.rows * per_row).astype(np.int32)
        size = (low + case.rows * per_row, block_size, case.num_kv_heads, case.head_size)
        generator = torch.Generator(device).manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator, dtype=dtype, device=device)

        self.k_cache, self.v_cache = random(*size), random(*size)
        self.q = random(case.rows, case.num_heads, case.head_size)
        self.block_tables = torch.from_numpy(table.reshape(case.rows, per_row)).to(device)
        self.prefix_length = torch.full((case.rows,), case.prefix, dtype=torch.int32, device=device)
        self.position = self.prefix_length + (case.suffix - 1)
        self.scale = case.head_size**-0.5
        self.out = torch.empty_like(self.q)
        self.fp8 = self._fp8_suffixes() if case.fp8 else None

    def _fp8_suffixes(self) -> FP8Blocks:
        """The suffixes as FP8 blocks of the same numbers; their caches hold what can be read."""
        blocks, size, heads, width = self.k_cache.shape

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=torch.uint8, device=self.q.device)

        keys, values = (zeros(blocks, size, heads, width) for _ in range(2))
        found = FP8Blocks(
            keys.view(torch.float8_e4m3fn), values.view(torch.float8_e4m3fn),
            zeros(blocks, heads, 2, size),
        )  # fmt: skip
        offsets = torch.arange(size, device=self.q.device)
        for table in self.block_tables.flatten().long().split(_STORED_AT_ONCE):
            slots = (table[:, None] * size + offsets).flatten()
            k, v = (cache.flatten(0, 1)[slots] for cache in (self.k_cache, self.v_cache))
            store_fp8(k, v, found, slots)
            for cache, numbers in zip(
                (self.k_cache, self.v_cache), read_fp8(found, slots), strict=True
            ):
                cache.flatten(0, 1)[slots] = numbers.to(cache.dtype)
        return found

    def inputs(self, plan: AttentionPlan) -> tuple:
        """The positional arguments of `decode_attention`."""
        return (
            self.q, self.k_cache, self.v_cache, plan,
            self.block_tables, self.prefix_length, self.position,
        )  # fmt: skip

    def error(self, out: torch.Tensor | None = None, rows: int = 8) -> float:
        """Return the largest error of a result, on some rows, against float32 over their whole
        contexts.

        out: [rows, num_heads, head_size], by default `out` of the tensors.
        """
        out = self.out if out is None else out
        size = self.shape.block_size
        keys, values = self.k_cache.flatten(0, 1), self.v_cache.flatten(0, 1)
        worst = 0.0
        for row in range(0, self.case.rows, max(1, self.case.rows // rows)):
            own = self.block_tables[row, :, None] * size + torch.arange(size, device=keys.device)
            shared = torch.from_numpy(self._shared_slots(row)).to(keys.device)
            slots = torch.cat([shared, own.flatten()[: self.case.suffix]])
            k = keys[slots].float().repeat_interleave(self.shape.group, 1)
            v = values[slots].float().repeat_interleave(self.shape.group, 1)
            s = torch.einsum("hd,thd->ht", self.q[row].float(), k) * self.scale
            expected = torch.einsum("ht,thd->hd", torch.softmax(s, 1), v)
            difference = (out[row].float() - expected).abs().max().item()
            worst = max(worst, difference if difference == difference else float("inf"))
        return worst

    def _shared_slots(self, row: int) -> npt.NDArray[np.int64]:
        """List where the tokens above a row's suffix lie."""
        layout = self.layout
        (place,) = (layout.order == row).nonzero()[0]
        (nodes,) = ((layout.row_start <= place) & (place < layout.row_end)).nonzero()
        firsts = layout.block_start[nodes] * self.shape.block_size
        slots = [
            np.arange(length) + first
            for first, length in zip(firsts, layout.length[nodes], strict=True)
        ]
        return np.concatenate(slots) if slots else np.zeros(0, np.int64)


def _layout(case: Tree, block_size: int) -> SharedLayout:
    """Level after level, each node's blocks in one run; rows in mixed order."""
    nodes = np.array([count for count, _ in case.levels], np.int64)
    tokens = np.array([length for _, length in case.levels], np.int32)
    assert not (case.rows % nodes).any(), "a level has rows that do not divide among its nodes"
    length = np.repeat(tokens, nodes)
    rows = np.repeat(case.rows // nodes, nodes)
    ordinal = np.concatenate([np.arange(count) for count in (0, *nodes)])
    starts = np.cumsum([0, *(-(-length // block_size))]).astype(np.int32)
    return SharedLayout(
        order=np.random.default_rng(1).permutation(case.rows).astype(np.int32),
        length=length,
        position=np.repeat(np.cumsum(tokens) - tokens, nodes).astype(np.int32),
        level=np.repeat(np.arange(len(nodes)), nodes).astype(np.int32),
        row_start=(ordinal * rows).astype(np.int32),
        row_end=((ordinal + 1) * rows).astype(np.int32),
        block_start=starts,
        blocks=np.arange(starts[-1], dtype=np.int32),
        contiguous=np.ones(len(length), bool),
        fp8=np.zeros(len(length), bool),
    )
