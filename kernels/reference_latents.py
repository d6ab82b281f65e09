"""A decoding step over latents in plain torch: the ground truth, and the path without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from sharegen.kernels.dense import dense_each
from sharegen.kernels.latents import Latents
from sharegen.kernels.partial import Partial, finish, merge
from sharegen.kernels.reference import ReferencePlan, SuffixPlan


def decode_latents(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    latents: Latents,
    plan: ReferencePlan,
    suffix: SuffixPlan,
    *,
    scale: float,
) -> Tensor:
    """Compute a decoding step: each row attends to the nodes above it and to its own latents.

    Args:
        q: [rows, num_heads, key_size].
        k_cache, v_cache: [blocks, block_size, num_heads, *], of nodes that are spread out.
        latents: the blocks of all else, with the step's own.
        plan: the nodes above the rows.
        suffix: each row's own tokens.
        scale: multiplies the scores.

    Returns:
        [rows, num_heads, value_size]; rows that are not in the plan's order get 0.
    """
    queries = q.float() * scale
    above = plan.by_level(queries[plan.order], k_cache, v_cache, latents, None, None)
    own = _own(latents.absorb(queries)[plan.order], latents, suffix)
    every = own.out.new_zeros(len(q), *own.out.shape[1:])  # as many as there are rows, padded
    every[plan.order] = own.out
    own = Partial(latents.raised(every)[plan.order], own.top, own.total)
    out = q.new_zeros(len(q), q.shape[1], v_cache.shape[-1])
    out[plan.order] = finish(merge(*above, own), None).to(q.dtype)
    return out


def _own(q: Tensor, latents: Latents, suffix: SuffixPlan) -> Partial:
    """Attend from absorbed queries q [rows, num_heads, size] to each row's own latents."""
    partial = Partial.empty(len(q), q.shape[1], latents.rank, q.device)
    offsets = torch.arange(suffix.num_keys, device=q.device)
    for step in suffix.steps:
        has = offsets[None, :] < step.seen[:, None]
        tokens = latents.blocks.index_select(0, step.blocks)[..., : latents.size].float()
        # Beyond its end a block has what its memory held before, spread out maybe.
        tokens = tokens.view(len(has), suffix.num_keys, 1, -1).masked_fill(~has[..., None, None], 0)
        own = dense_each(q[step.rows], tokens, tokens[..., : latents.rank], has, None)
        if isinstance(step.rows, slice):
            partial = merge(partial, own)
        else:
            partial[step.rows] = merge(partial[step.rows], own)
    return partial
