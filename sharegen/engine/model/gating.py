"""A gated MLP's activation and its rows in FP8 as one kernel, where the rows are wide.

Model code says `down_proj(act_fn(gate_proj(x)) * up_proj(x))`, and a projection in FP8 begins with
the scales of its rows. The compiler sees both, so this is done in its graph, where nothing of the
model's code has to be matched; other activations, and what comes between, stay as they are.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from sharegen.engine.model import fp8
from sharegen.engine.model.graph_nodes import erase_unused, is_call, value_of

_LEAST_WIDTH = 8192  # numbers of a row, of which the compiler reads fewer once

_PRODUCTS = (operator.mul, torch.mul)


@torch.library.custom_op("sharegen::gated_rows", mutates_args=())
def gated_rows(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """gate, up: [..., K] -> silu(gate) * up as `fp8.quantise_rows` gives it."""
    if not gate.is_cuda:
        return fp8.quantise_rows(torch.nn.functional.silu(gate) * up)
    from sharegen.kernels import rows as kernels  # which needs Triton

    rows = kernels.gated_rows(gate.flatten(0, -2), up.flatten(0, -2), fp8.LEAST)
    return rows.numbers.view(gate.shape), rows.scales.view(*gate.shape[:-1], 1)


@gated_rows.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = gate.new_empty(*gate.shape[:-1], 1, dtype=torch.float32)
    return gate.new_empty(gate.shape, dtype=fp8.E4M3), scales


def gates_into_rows(graph: fx.Graph) -> None:
    """Put `gated_rows` in the place of wide rows that are quantised right after their gate."""
    for node in [node for node in graph.nodes if is_call(node, fp8.QUANTISE)]:
        found = _gate_and_up(node.args[0])
        if found is not None:
            with graph.inserting_before(node):
                both = graph.call_function(torch.ops.sharegen.gated_rows.default, found)
            both.meta = node.meta
            node.replace_all_uses_with(both)
            erase_unused(graph, node)


def _gate_and_up(product: Any) -> tuple[fx.Node, fx.Node] | None:
    """What silu is applied to and multiplied with, if that is all that is quantised."""
    if not is_call(product, _PRODUCTS) or len(product.args) != 2 or product.kwargs:
        return None
    if len(product.users) > 1:
        return None
    for activation, up in (product.args, reversed(product.args)):
        if is_call(activation, (torch.nn.functional.silu,)):
            gate = activation.args[0]
            if isinstance(gate, fx.Node) and isinstance(up, fx.Node) and _are_wide(activation, up):
                return gate, up
    return None


def _are_wide(one: fx.Node, other: fx.Node) -> bool:
    """Whether they are tensors of one size and dtype with wide rows, which the kernel can hold."""
    from sharegen.kernels.rows import WIDEST  # which needs Triton

    first, second = value_of(one), value_of(other)
    if first is None or second is None:
        return False
    width = first.shape[-1]
    return (
        first.shape == second.shape
        and first.dtype == second.dtype
        and isinstance(width, int)
        and _LEAST_WIDTH <= width <= WIDEST
    )
