"""Decode attention with kernels: shared phase and suffix phase, exact (Hydragen, section 3).

The shared phase keeps the matrix units busy, the suffix phase the memory: on a GPU they run at the
same time, on two streams, and a merge ends both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.fp8_blocks import FP8Blocks
from sharegen.kernels.fp8_rows import FP8Rows
from sharegen.kernels.shared import shared_attention
from sharegen.kernels.suffix import suffix_attention


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: AttentionPlan,
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
    following: bool = False,
) -> torch.Tensor:
    """Compute a decoding step: each row attends to the nodes above it and to its own suffix.

    Reads nothing back to the host, and may be captured.

    Args:
        q: [rows, num_heads, key_size].
        k_cache, v_cache: [blocks, block_size, num_kv_heads, *]; the step's keys and values are in
            them already, or `put` puts them there.
        plan: the shared nodes of the batch, and the unshared ones.
        block_tables: [rows, max_blocks] int32, the suffixes' blocks.
        prefix_length: [rows] int32, tokens above the suffix.
        position: [rows] int32, of the query. A row without a suffix has position =
            prefix_length - 1, and becomes 0 when the plan does not name it either.
        put: launches what puts the step's keys and values into the cache, beside the shared nodes,
            which have none of them.
        fp8: the FP8 blocks, where suffixes and the nodes that are marked so lie in these.
        scale: multiplies the scores.
        window: keys that a query sees at most, its own included; None for all.
        attention_chunk: length of the chunks within which queries see keys; None for none.
        softcap: limit of the scores, where the model has one.
        sinks: [num_heads], one more logit without a value.
        out: [rows, num_heads, value_size], where the result goes; by default a new tensor.
        rows: where the result goes in FP8 instead.
        following: as `suffix_attention` takes it.

    Returns:
        [rows, num_heads, value_size], or the numbers of `rows` where that is given.
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
            q, k_cache, v_cache, plan, *own,
            sinks=sinks, out=out, rows=rows, following=following, **how,
        )  # fmt: skip
    # The suffixes are those that wait for the other stream: their many programs, once there, would
    # take all places first, and the few large ones of the shared phase would begin behind them.
    current = torch.cuda.current_stream(plan.device)
    plan.stream.wait_stream(current)
    shared_attention(q, k_cache, v_cache, plan, position, **how)
    with torch.cuda.stream(plan.stream):
        put()
        out = suffix_attention(
            q, k_cache, v_cache, plan, *own,
            sinks=sinks, out=out, rows=rows, beside=current, following=following, **how,
        )  # fmt: skip
    current.wait_stream(plan.stream)
    return out


def _nothing() -> None:
    """Do nothing: the keys and values are where they belong."""
