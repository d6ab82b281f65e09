"""Decode attention with kernels: shared phase and suffix phase, exact (Hydragen, section 3).

The shared phase keeps the matrix units busy, the suffix phase the memory: on a GPU they run at the
same time, on two streams, and a merge ends both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.fp8_rows import FP8Rows
from sharegen.kernels.plan import Plan
from sharegen.kernels.shared import shared_attention
from sharegen.kernels.suffix import suffix_attention


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: Plan,
    block_tables: torch.Tensor,
    prefix_length: torch.Tensor,
    position: torch.Tensor,
    *,
    put: Callable[[], None] | None = None,
    fp8: FP8Blocks | None = None,
    scale: float,
    window: int | None = None,
    attention_chunk: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    rows: FP8Rows | None = None,
) -> torch.Tensor:
    """One decoding step: each row against the nodes above it and its own suffix.

    q: [rows, num_heads, key_size]; the keys and values of the step are in the caches already, or
    put() launches what puts them there: beside the shared nodes, which have none of them.
    block_tables: [rows, max_blocks] int32, the suffix's blocks. prefix_length: [rows] int32, tokens
    above the suffix. position: [rows] int32, of the query; a row without a suffix has
    position = prefix_length - 1, and becomes 0 when the plan does not name it either.
    fp8: the FP8 blocks, where suffixes and the nodes that are marked so lie in these.
    Returns [rows, num_heads, value_size], or, given `rows`, writes these and returns their numbers.
    Reads nothing back to the host, and may be captured.
    """
    how: dict[str, Any] = {
        "fp8": fp8, "scale": scale, "window": window,
        "attention_chunk": attention_chunk, "softcap": softcap,
    }  # fmt: skip
    own = block_tables, prefix_length, position
    put = put or _nothing
    if not plan.sharing or plan.stream is None:
        put()
        if plan.sharing:
            shared_attention(q, k_cache, v_cache, plan, position, **how)
        return suffix_attention(
            q, k_cache, v_cache, plan, *own, sinks=sinks, out=out, rows=rows, **how
        )
    # The suffixes are those that wait for the other stream: their many programs, once there, would
    # take all places first, and the few large ones of the shared phase would begin behind them.
    current = torch.cuda.current_stream(plan.device)
    plan.stream.wait_stream(current)
    shared_attention(q, k_cache, v_cache, plan, position, **how)
    with torch.cuda.stream(plan.stream):
        put()
        out = suffix_attention(
            q, k_cache, v_cache, plan, *own,
            sinks=sinks, out=out, rows=rows, beside=current, **how,
        )  # fmt: skip
    current.wait_stream(plan.stream)
    return out


def _nothing() -> None:
    """The keys and values are where they belong."""
