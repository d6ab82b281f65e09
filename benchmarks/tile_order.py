"""`python -m benchmarks tile-order`: do the kernels' two kinds of products add up alike?

A shared node is read by many lines of queries against a tile of keys, own tokens by a few lines,
with the product transposed. If a row's sums over one tile have the same bits in both, whoever reads
it, then its bits need not depend on where its prompt is shared: sharing is cut at whole tiles, and
who reads on begins with the state (acc, m, total) in float32 that was left behind. This compares
that state, of the same rows and keys, between kinds of products.
"""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from sharegen.kernels.online_softmax import attend_transposed, scores, weights
from sharegen.kernels.tiles import precision

ROWS = 8  # that all cases have
SIZE = 128  # of a head
TILE = 64  # keys of a tile, but for a case that has fewer


@dataclass(frozen=True)
class Case:
    """How tiles are multiplied: lines of queries by keys, or keys by lines.

    in_pairs: whether the weights of a tile are added up in pairs, pairs of pairs and so on.
    """

    name: str
    lines: int
    transposed: bool
    num_warps: int
    keys: int = TILE
    in_pairs: bool = True


CASES = (
    Case("128 lines", 128, False, 8),
    Case("own, 8 lines, one warp", 8, True, 1),
    Case("own, 16 lines, one warp", 16, True, 1),
    Case("64 lines", 64, False, 4),
    Case("16 lines", 16, False, 4),
    Case("own, 8 lines, four warps", 8, True, 4),
    Case("own, 8 lines, sums as the compiler has them", 8, True, 1, in_pairs=False),
    Case("own, 8 lines, tiles of 16 keys", 8, True, 1, keys=16),
)


@triton.jit
def _sum_of_pairs(p):
    """[M] of p [M, N], N a power of two: neighbours first, then neighbouring sums."""
    LINES: tl.constexpr = p.shape[0]
    N: tl.constexpr = p.shape[1]
    if N == 64:
        p = _halved(p, LINES, 32)
        p = _halved(p, LINES, 16)
    p = _halved(p, LINES, 8)
    p = _halved(p, LINES, 4)
    p = _halved(p, LINES, 2)
    first, second = tl.split(p)
    return first + second


@triton.jit
def _halved(p, LINES: tl.constexpr, N: tl.constexpr):
    first, second = tl.split(p.reshape(LINES, N, 2))
    return first + second


@triton.jit
def _tiles_kernel(
    q_ptr, k_ptr, v_ptr, s_ptr, acc_ptr, m_ptr, total_ptr, first, last, num_keys, scale,
    ROWS: tl.constexpr, LINES: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr,
    TRANSPOSED: tl.constexpr, IN_PAIRS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One head: the state goes on over tiles first to last; s [ROWS, KEYS]: the last one's scores.

    q: [heads, LINES, SIZE], k, v: [heads, num_keys, SIZE], the state of LINES each.
    """
    head = tl.program_id(0)
    o_m = tl.arange(0, LINES)
    o_n = tl.arange(0, KEYS)
    o_d = tl.arange(0, SIZE)
    p_q = head * LINES * SIZE + o_m[:, None] * SIZE + o_d[None, :]
    q = tl.load(q_ptr + p_q)
    acc = tl.load(acc_ptr + p_q)
    if TRANSPOSED:
        acc = tl.trans(acc)
    m = tl.load(m_ptr + head * LINES + o_m)
    total = tl.load(total_ptr + head * LINES + o_m)
    for tile in range(first, last):
        p_k = (head * num_keys + tile * KEYS + o_n)[:, None] * SIZE + o_d[None, :]
        k = tl.load(k_ptr + p_k)
        v = tl.load(v_ptr + p_k)
        if TRANSPOSED:
            s = tl.dot(k, tl.trans(q), input_precision=PRECISION)
            lines = tl.trans(s)
            if IN_PAIRS:
                p, decay, _ = weights(m, lines, scale, True)
                sums = total * decay + _sum_of_pairs(p)
                acc, m, total, _ = attend_transposed(
                    acc, m, total, s, scale, v, None, 1.0, True, PRECISION
                )
                total = sums
            else:
                acc, m, total, _ = attend_transposed(
                    acc, m, total, s, scale, v, None, 1.0, True, PRECISION
                )
        else:
            lines, _ = scores(q, k, 1.0, 1.0, False, PRECISION)
            p, decay, m = weights(m, lines, scale, True)
            total = total * decay + (_sum_of_pairs(p) if IN_PAIRS else tl.sum(p, 1))
            acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
        p_s = head * ROWS * KEYS + o_m[:, None] * KEYS + o_n[None, :]
        tl.store(s_ptr + p_s, lines, mask=(o_m < ROWS)[:, None] & (o_n < KEYS)[None, :])
    if TRANSPOSED:
        acc = tl.trans(acc)
    tl.store(acc_ptr + p_q, acc)
    tl.store(m_ptr + head * LINES + o_m, m)
    tl.store(total_ptr + head * LINES + o_m, total)


State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""acc [heads, ROWS, SIZE], m and total [heads, ROWS], in float32."""


class Comparison:
    """Rows and keys of random numbers, and what the cases make of them.

    heads: of which each has its own; tiles: of keys.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, heads: int, tiles: int) -> None:
        self.device, self.dtype, self.heads, self.tiles = device, dtype, heads, tiles
        generator = torch.Generator(device).manual_seed(0)

        def drawn(count: int) -> torch.Tensor:
            shape = (heads, count, SIZE)
            return torch.randn(shape, generator=generator, device=device).to(dtype)

        self.q, self.others = drawn(ROWS), (drawn(128), drawn(128) * 8)
        self.k, self.v = drawn(tiles * TILE), drawn(tiles * TILE)

    def run(
        self, case: Case, state: State | None = None, first: int = 0, last: int | None = None,
        others: int = 0,
    ) -> tuple[torch.Tensor, State]:  # fmt: skip
        """The scores of the last tile and the state after tiles `first` to `last`, of TILE keys.

        others: which further rows stand beside those that are looked at.
        """
        last = self.tiles if last is None else last
        parts = TILE // case.keys
        beside = self.others[others][:, : case.lines - ROWS]
        q = torch.cat([self.q, beside], 1).contiguous()

        def filled(kept: torch.Tensor | None, value: float, *sizes: int) -> torch.Tensor:
            whole = torch.full((self.heads, case.lines, *sizes), value, device=self.device)
            if kept is not None:
                whole[:, :ROWS] = kept
            return whole

        acc, m, total = state or (None, None, None)
        acc, total = filled(acc, 0.0, SIZE), filled(total, 0.0)
        m = filled(m, float("-inf"))
        s = torch.zeros(self.heads, ROWS, case.keys, device=self.device)
        factor = SIZE**-0.5 * 1.4426950408889634
        _tiles_kernel[(self.heads,)](
            q, self.k, self.v, s, acc, m, total, first * parts, last * parts, self.k.shape[1],
            factor, ROWS=ROWS, LINES=case.lines, KEYS=case.keys, SIZE=SIZE,
            TRANSPOSED=case.transposed, IN_PAIRS=case.in_pairs, PRECISION=precision(self.dtype),
            num_warps=case.num_warps,
        )  # fmt: skip
        return s, (acc[:, :ROWS], m[:, :ROWS], total[:, :ROWS])

    def against(self, case: Case, first: Case) -> dict[str, float | None]:
        """The share of numbers whose bits are those of `first`: of one tile, of all, handed on."""
        s, one = self.run(case, last=1)
        s_first, one_first = self.run(first, last=1)
        _, whole = self.run(case)
        _, whole_first = self.run(first)
        cut = self.tiles // 3
        _, handed = self.run(case, self.run(first, last=cut)[1], cut)
        _, beside = self.run(case, others=1)
        return {
            "scores": _same(s, s_first) if case.keys == first.keys else None,
            "acc of a tile": _same(one[0], one_first[0]),
            "total of a tile": _same(one[2], one_first[2]),
            "acc": _same(whole[0], whole_first[0]),
            "total": _same(whole[2], whole_first[2]),
            "acc, handed on": _same(handed[0], whole_first[0]),
            "beside others": min(_same(a, b) for a, b in zip(whole, beside, strict=True)),
        }


def _same(one: torch.Tensor, other: torch.Tensor) -> float:
    same = one.contiguous().view(torch.int32) == other.contiguous().view(torch.int32)
    return round(same.float().mean().item(), 4)


def bench_tile_order(
    device: str, dtype: str, heads: int = 64, tiles: int = 16
) -> Iterator[dict[str, Any]]:
    """Compare all cases with the first one; 1.0 is: all bits are the same.

    device: "cpu" takes TRITON_INTERPRET=1, and says something of this program alone.
    """
    comparison = Comparison(torch.device(device), getattr(torch, dtype), heads, tiles)
    for case in CASES:
        shares = comparison.against(case, CASES[0])
        yield {"bench": "tile-order", "case": case.name, "dtype": dtype, **shares}
