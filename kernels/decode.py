"""Decode attention with kernels: shared phase, then suffix phase, exact (Hydragen, section 3)."""

from __future__ import annotations

import torch

from sharegen.kernels.plan import Plan
from sharegen.kernels.shared import shared_attention
from sharegen.kernels.suffix import suffix_attention
from sharegen.kernels.tiles import Tile


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: Plan,
    block_tables: torch.Tensor,
    prefix_length: torch.Tensor,
    position: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    beside: torch.cuda.Stream | None = None,
    tma: bool = False,
    suffix_tile: Tile | None = None,
) -> torch.Tensor:
    """One decoding step: each row against the nodes above it and its own suffix.

    q: [rows, num_heads, key_size]; the keys and values of the step are in the caches already.
    block_tables: [rows, max_blocks] int32, the suffix's blocks. prefix_length: [rows] int32, tokens
    above the suffix. position: [rows] int32, of the query; a row without a suffix has
    position = prefix_length - 1, and becomes 0 when the plan does not name it either.
    beside: a stream to run the shared phase on while the suffix phase reads memory.
    Returns [rows, num_heads, value_size]. Launches two or three kernels, reads nothing back, and
    may be captured.
    """
    if beside is not None:
        beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        shared_attention(
            q, k_cache, v_cache, plan, position,
            scale=scale, window=window, chunk=chunk, softcap=softcap, tma=tma,
        )  # fmt: skip
    return suffix_attention(
        q, k_cache, v_cache, plan, block_tables, prefix_length, position,
        scale=scale, window=window, chunk=chunk, softcap=softcap, sinks=sinks, out=out,
        beside=beside, tile=suffix_tile,
    )  # fmt: skip
