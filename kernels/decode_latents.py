"""Decode attention where samples' own tokens are latents, with kernels: exact, in two phases.

Nodes that are spread out are the shared phase's, as in `decode.py`; a row's own latents, and nodes
of them, are its own. The one keeps the matrix units busy, the other the memory, so they run at the
same time, on two streams, and a merge ends both.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from sharegen.kernels.attention_plan import AttentionPlan
from sharegen.kernels.latents import Latents
from sharegen.kernels.merge import merge_partials
from sharegen.kernels.own_latents import own_latents
from sharegen.kernels.shared import shared_attention


def decode_latents(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    latents: Latents,
    plan: AttentionPlan,
    block_tables: torch.Tensor,
    prefix_length: torch.Tensor,
    position: torch.Tensor,
    *,
    put: Callable[[], None],
    scale: float,
) -> torch.Tensor:
    """Compute a decoding step: each row attends to the nodes above it and to its own latents.

    Reads nothing back to the host, and may be captured.

    Args:
        q: [rows, num_heads, key_size].
        k_cache, v_cache: [blocks, block_size, num_heads, *], of nodes that are spread out.
        latents: the blocks of all else.
        plan: the nodes of the batch, of which those of latents are unshared (`cost.LATENT_NODES`).
        block_tables: [rows, max_blocks] int32, the rows' own blocks.
        prefix_length: [rows] int32, tokens above the rows' own.
        position: [rows] int32, of the query; prefix_length - 1 where a row has no tokens of its
            own.
        put: launches what puts the step's latents into their blocks.
        scale: multiplies the scores.

    Returns:
        [rows, num_heads, value_size]; rows that nothing names get 0.
    """
    tables = block_tables, prefix_length, position
    if not plan.sharing or plan.stream is None:
        put()
        if plan.sharing:
            shared_attention(q, k_cache, v_cache, plan, position, scale=scale)
        own, lse = _own(q, latents, plan, *tables, scale=scale)
    else:  # the rows' own wait for the other stream, for the reason that `decode.py` gives
        current = torch.cuda.current_stream(plan.device)
        plan.stream.wait_stream(current)
        shared_attention(q, k_cache, v_cache, plan, position, scale=scale)
        with torch.cuda.stream(plan.stream):
            put()
            own, lse = _own(q, latents, plan, *tables, scale=scale)
        current.wait_stream(plan.stream)
    out = q.new_empty(*q.shape[:2], v_cache.shape[-1])
    return merge_partials(plan.partial_out, plan.partial_lse, plan.partial_start, own, lse, out)


def _own(
    q: torch.Tensor, latents: Latents, plan: AttentionPlan, *tables: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, splits, num_heads, value_size] and [rows, splits, num_heads]."""
    out, lse = own_latents(latents.absorb(q), latents, plan, *tables, scale=scale)
    return latents.raised(out.flatten(0, 1)).unflatten(0, out.shape[:2]), lse
