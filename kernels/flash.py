"""Attention by torch's own flash kernel for CPUs, exact like the reference, and faster.

It gives a result and its log-sum-exp, which merge as any other parts do. What it cannot do is the
reference's: windows, soft caps, and values of another size than keys. So is what it would round by
how many rows there are, for the arithmetic of a row must not depend on its neighbours: rows come in
multiples of 16, or of 4 where that is seen to make no difference, and fewer than 16 keys are too
few for it. A row's own keys are read as many at once as its own number says, rounded up, and rows
with the same number together; so many rows at a time that what is gathered of them stays in the
cache of a core.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from sharegen.kernels import reference
from sharegen.kernels.flash_packing import LEAST, PIECE, Level, pack
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.latents import Latents
from sharegen.kernels.layout import SharedLayout
from sharegen.kernels.partial import NOTHING, Partial, finish, merge
from sharegen.kernels.reference import ReferencePlan

_FEW = 4  # query rows
_STEP = 32  # own keys are read in multiples of about this
_GATHERED = 1 << 17  # numbers of own keys at a time: half a MiB, and as much of values
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class FlashPlan(ReferencePlan):
    """A ReferencePlan whose nodes and chunks the kernel reads wherever it can."""

    def __init__(self, layout: SharedLayout, block_size: int, device: torch.device) -> None:
        super().__init__(layout, block_size, device)
        self._levels: dict[tuple[int, int], list[Level]] = {}

    def by_level(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        fp8: FP8Blocks | Latents | None,
        lowest: Tensor | None,
        softcap: float | None,
    ) -> list[Partial]:
        """See ReferencePlan.by_level."""
        if lowest is not None or not serves_layer(q.shape[2], v_cache.shape[3], softcap):
            return super().by_level(q, k_cache, v_cache, fp8, lowest, softcap)
        num_rows, num_heads, size = q.shape
        num_kv_heads = k_cache.shape[2]
        group = num_heads // num_kv_heads
        queries = q.view(num_rows, num_kv_heads, group, size).transpose(0, 1).flatten(1, 2)
        queries = pad(queries, (0, 0, 0, LEAST))
        of_levels = []
        for level in self._packed(group, k_cache):
            out, lse = _read(queries, k_cache, v_cache, fp8, level, masked=False)
            if level.pieces and lse.isnan().any():  # the bias is added: others' keys may be NaN
                out, lse = _read(queries, k_cache, v_cache, fp8, level, masked=True)
            out, lse = (
                x.narrow(1, 0, num_rows * group).unflatten(1, (num_rows, group))
                .transpose(0, 1).flatten(1, 2) for x in (out, lse)
            )  # fmt: skip
            part = Partial(out, lse, (lse != NOTHING).float())
            for node in level.few:
                part[node.rows] = reference.one_node(q, k_cache, v_cache, fp8, node, None, None)
            of_levels.append(part)
        return of_levels

    def _packed(self, group: int, k_cache: Tensor) -> list[Level]:
        """How the levels are read in layers with so many query heads of a KV head."""
        _, block_size, num_kv_heads, size = k_cache.shape
        numbers = num_kv_heads * size
        if (group, numbers) not in self._levels:
            self._levels[group, numbers] = [
                pack(
                    self.level(level), len(self.order), group, block_size, numbers, _multiple(size)
                )
                for level in range(self.num_levels)
            ]
        return self._levels[group, numbers]

    def causal(self, q: Tensor, k: Tensor, v: Tensor, softcap: float | None) -> Partial:
        """See ReferencePlan.causal."""
        if softcap is not None or k.shape != v.shape or len(k) < LEAST:
            return super().causal(q, k, v, softcap)
        num_rows, num_heads, size = q.shape
        num_kv_heads = k.shape[1]
        rows = pad(q, (0, 0, 0, 0, 0, -num_rows % LEAST))
        rows = rows.view(len(rows), num_kv_heads, -1, size).permute(1, 2, 0, 3)
        group = num_heads // num_kv_heads
        keys, values = (
            x.float().transpose(0, 1)[:, None].expand(-1, group, -1, -1) for x in (k, v)
        )
        out, lse = _flash(rows, keys, values, is_causal=True, scale=1.0)
        return _partial(
            out[:, :, :num_rows].permute(2, 0, 1, 3).flatten(1, 2),
            lse[:, :, :num_rows].permute(2, 0, 1).flatten(1),
        )


@functools.cache
def _multiple(size: int) -> int:
    """In which multiples the query rows of pieces may come, for heads of this size.

    It is tried: a row's result must be the same to the bit with few rows and with many.
    """
    generator, shape = torch.Generator().manual_seed(0), (2, 1, 4 * PIECE, size)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float32) for _ in range(3))
    q = q[:, :, :PIECE]
    for keys in range(_STEP, 4 * PIECE + 1, _STEP):
        bias = torch.zeros(2, 1, 1, keys, dtype=torch.float32)
        bias[..., keys - 3 :] = float("-inf")
        full, *fewer = (
            _flash(q[:, :, :rows].contiguous(), k[:, :, :keys], v[:, :, :keys],
                   attn_mask=bias, scale=size**-0.5)
            for rows in range(PIECE, 0, -_FEW)
        )  # fmt: skip
        for found in fewer:
            rows = found[0].shape[2]
            if not all(torch.equal(a[:, :, :rows], b) for a, b in zip(full, found, strict=True)):
                return LEAST
    return _FEW


def _read(
    queries: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    fp8: FP8Blocks | Latents | None,
    level: Level,
    masked: bool,
) -> tuple[Tensor, Tensor]:
    """Attend from the rows of a level's nodes to these nodes.

    queries: [num_kv_heads, query rows and LEAST more, size]. masked: see _own. Returns the results,
    [num_kv_heads, query rows or more, size], and their log-sum-exps; of no node 0 and NOTHING.
    """
    num_kv_heads, _, size = queries.shape
    outs = [queries.new_zeros(num_kv_heads, 1, size)]
    lses = [queries.new_full((num_kv_heads, 1), NOTHING)]
    for pieces in level.pieces:
        count = len(pieces.bias)
        k, v = k_cache.index_select(0, pieces.blocks), v_cache.index_select(0, pieces.blocks)
        k, v = _by_head(k, v, pieces.bias, masked)
        rows = queries.index_select(1, pieces.queries).unflatten(1, (count, -1)).transpose(0, 1)
        out, lse = _flash(rows, k, v, attn_mask=pieces.bias, scale=1.0)
        outs.append(out.transpose(0, 1).flatten(1, 2))
        lses.append(lse.transpose(0, 1).flatten(1, 2))
    for each in level.alone:
        rows = queries.narrow(1, each.first, each.padded)[None]  # the next ones fill it up
        k, v = reference.read_node(k_cache, v_cache, fp8, each.node)
        k, v = (x.float()[None].transpose(1, 2) for x in (k, v))
        out, lse = _flash(rows, k, v, scale=1.0)
        outs.append(out[0])
        lses.append(lse[0])
    if level.place is None:
        return outs[-1], lses[-1]
    out, lse = torch.cat(outs, 1), torch.cat(lses, 1)
    return out.index_select(1, level.place), lse.index_select(1, level.place)


@dataclass(frozen=True)
class _OwnKeys:
    """Rows whose own keys are read together.

    rows: of those of the suffix plan. blocks: [rows * blocks read], flat. bias: [rows, 1, 1, keys],
    0 for a key that the row has, -inf beyond its last.
    """

    rows: slice
    blocks: Tensor
    bias: Tensor


class FlashSuffixPlan:
    """Which rows' own blocks are read together in this step; made once, used by every layer.

    Args:
        plan: the nodes above the rows, and the rows in tree order; a dead row is not in the order.
        block_size: tokens of a block.
        block_tables: [rows, max_blocks], on a CPU as the next two.
        prefix_length: [rows], tokens above the row's own.
        position: [rows], of the query.
        token_numbers: the most numbers of one token's keys in a layer.

    Attributes:
        rows: the rows in tree order that have keys, one part's after the other's.
        place: [rows in tree order], where the result of each is: 0 is that of no keys, those of
            `rows` follow.
    """

    def __init__(
        self,
        plan: ReferencePlan,
        block_size: int,
        block_tables: Tensor,
        prefix_length: Tensor,
        position: Tensor,
        token_numbers: int,
    ) -> None:
        tables = block_tables[plan.order]
        length = (position - prefix_length)[plan.order] + 1
        wide = max(1, _STEP // block_size) * block_size
        same: dict[int, list[int]] = {}
        for row, tokens in enumerate(length.tolist()):
            if tokens > 0:  # else it has ended, and the host does not know yet
                same.setdefault(_rounded(-(-tokens // wide)) * wide, []).append(row)
        self.parts: list[_OwnKeys] = []
        rows: list[int] = []
        for width, of_width in same.items():
            blocks = tables[of_width, : width // block_size]
            blocks = pad(blocks, (0, width // block_size - blocks.shape[1]))
            hidden = torch.arange(width) >= length[of_width, None]
            bias = torch.zeros(hidden.shape, dtype=torch.float32)
            bias = bias.masked_fill_(hidden, float("-inf"))[:, None, None]
            most = max(1, _GATHERED // (width * token_numbers))
            for first in range(0, len(of_width), most):
                part = slice(first, min(first + most, len(of_width)))
                at = slice(len(rows) + part.start, len(rows) + part.stop)
                self.parts.append(_OwnKeys(at, blocks[part].flatten(), bias[part]))
            rows += of_width
        self.rows = torch.tensor(rows, dtype=torch.int64)
        self.place = torch.zeros(len(length), dtype=torch.int64)
        self.place[self.rows] = torch.arange(1, len(rows) + 1)


def serves_layer(
    key_size: int, value_size: int, softcap: float | None, *limits: int | None
) -> bool:
    """Whether `decode_attention` can compute a layer. limits: its window and chunk of attention."""
    return key_size == value_size and softcap is None and all(limit is None for limit in limits)


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: ReferencePlan,
    suffix: FlashSuffixPlan,
    *,
    fp8: FP8Blocks | None = None,
    scale: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """One decoding step of a layer that `serves_layer` allows: see reference.decode_attention.

    q: [rows, num_heads, size]. All parts of a row (its levels of the tree, its own keys) are merged
    in one pass; one that a row does not have adds an exact zero.
    """
    ordered = q.index_select(0, plan.order).float().mul_(scale)
    shared = plan.by_level(ordered, k_cache, v_cache, fp8, None, None)
    own = _own(ordered, k_cache, v_cache, fp8, suffix, masked=fp8 is not None)
    if own.top.isnan().any():  # the bias is added: a key that is not a row's own may be NaN
        own = _own(ordered, k_cache, v_cache, fp8, suffix, masked=True)
    merged = finish(merge(*shared, own), sinks)
    return q.new_zeros(q.shape).index_copy_(0, plan.order, merged.to(q.dtype))


def _partial(out: Tensor, lse: Tensor) -> Partial:
    return Partial(out, lse, torch.ones_like(lse))


def _own(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    fp8: FP8Blocks | None,
    suffix: FlashSuffixPlan,
    masked: bool,
) -> Partial:
    """Attend from each row to its own keys. q: [rows, num_heads, size] in tree order, scaled.

    masked: whether what a block holds beyond its row's last key, which is what its memory held
    before, is made 0 first: it may not be finite, values of an FP8 block neither.
    """
    queries = q.index_select(0, suffix.rows).unflatten(1, (k_cache.shape[2], -1))
    outs = [queries.new_zeros(1, *queries.shape[1:])]
    lses = [queries.new_full((1, *queries.shape[1:3]), NOTHING)]
    block_size = k_cache.shape[1]
    for part in suffix.parts:
        if fp8 is None:
            k, v = k_cache.index_select(0, part.blocks), v_cache.index_select(0, part.blocks)
        else:
            inside = torch.arange(block_size)
            slots = part.blocks.long()[:, None] * block_size + inside
            k, v = reference.read_fp8(fp8, slots.flatten())
        k, v = _by_head(k, v, part.bias, masked)
        out, lse = _flash(queries[part.rows], k, v, attn_mask=part.bias, scale=1.0)
        outs.append(out)
        lses.append(lse)
    out, lse = (torch.cat(x).index_select(0, suffix.place).flatten(1, 2) for x in (outs, lses))
    return _partial(out, lse)


def _by_head(k: Tensor, v: Tensor, bias: Tensor, masked: bool) -> tuple[Tensor, Tensor]:
    """Shape gathered keys and values as [parts, num_kv_heads, keys, size]; bias: [parts, 1, 1,
    keys].

    masked: whether what the bias hides is made 0.
    """
    shape = (len(bias), -1, *k.shape[-2:])
    k, v = k.view(shape).float().transpose(1, 2), v.view(shape).float().transpose(1, 2)
    if masked:
        hidden = bias.transpose(2, 3) < 0
        k, v = k.masked_fill(hidden, 0.0), v.masked_fill(hidden, 0.0)
    return k, v


def _rounded(steps: int) -> int:
    """Round up to one of few numbers: all up to 16, then eight of each power of two."""
    unit = 1 << max(0, (steps - 1).bit_length() - 4)
    return -(-steps // unit) * unit
