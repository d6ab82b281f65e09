"""Experts in FP8 or MXFP4, as an implementation in transformers' interface for experts.

The tokens of each expert are brought together, and one grouped product serves all experts, as in
transformers' own grouped implementation. What lies between the products is the module's code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from sharegen.engine.model.fp4.products import multiply_fp4_groups
from sharegen.engine.model.fp8.blocks import are_of_blocks, multiply_block_groups
from sharegen.engine.model.fp8.products import multiply_groups

IMPLEMENTATION = "sharegen_quantised"


def is_known(module: nn.Module) -> bool:
    """Whether it is experts whose products the interface may take over, and how is known."""
    kind = type(module)
    return (
        hasattr(kind, "_apply_gate")
        and not getattr(module, "has_post_expert_norm", False)
        and all(
            isinstance(getattr(module, name, None), nn.Parameter) for name in projections(module)
        )
    )


def projections(module: Any) -> tuple[str, str]:
    """The names of the experts' weights, of [experts, out, in] each: the first and the second."""
    return ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")


def quantised_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Compute experts whose weights are in FP8 or MXFP4.

    Args:
        hidden_states: [T, hidden].
        top_k_index, top_k_weights: [T, k] the experts of each token and their weights.
    """
    count, k = top_k_index.shape
    numbers = top_k_index.reshape(-1)
    # By 16 bits: a GPU sorts in as many passes as a number has digits.
    few, order = numbers.to(torch.int16).sort(stable=True)
    expert = few.to(numbers.dtype)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    groups = torch.arange(module.num_experts, device=expert.device)
    ends = torch.searchsorted(expert, groups, right=True).int()
    first, second = projections(module)
    x = _project(module, first, hidden_states, expert, ends, order // k)
    x = module._apply_gate(x) if module.has_gate else module.act_fn(x)
    x = _project(module, second, x, expert, ends)
    weighted = x * top_k_weights.reshape(-1)[order, None]
    return weighted[back].view(count, k, -1).sum(dim=1).to(hidden_states.dtype)


def _project(
    module: Any,
    name: str,
    x: torch.Tensor,
    expert: torch.Tensor,
    ends: torch.Tensor,
    which: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply rows of x, which are `which` of them or all, by the weights of their experts."""
    weight, scales = getattr(module, name), getattr(module, f"{name}_scale")
    out = multiply_experts(x, weight, scales, ends, which)
    return out + getattr(module, f"{name}_bias")[expert] if module.has_bias else out


def multiply_experts(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    ends: torch.Tensor,
    which: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply rows that lie expert by expert, as the dtype and the scales of the weights ask for.

    The arguments are those of `multiply_fp4_groups`, `multiply_block_groups` or `multiply_groups`.
    """
    if weight.dtype is torch.int16:
        return multiply_fp4_groups(x, weight, scales, ends, which)
    if are_of_blocks(weight, scales):
        return multiply_block_groups(x, weight, scales, ends, which)
    return multiply_groups(x if which is None else x[which], weight, scales, ends)


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, quantised_experts)
