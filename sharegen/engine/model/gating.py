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
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

from sharegen.engine.model import fp8

_LEAST_WIDTH = 8192  # numbers of a row, of which the compiler reads fewer once

_QUANTISE = (torch.ops.sharegen.quantise_rows, torch.ops.sharegen.quantise_rows.default)
_PRODUCTS = (operator.mul, torch.mul)


@torch.library.custom_op("sharegen::gated_rows", mutates_args=())
def gated_rows(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """gate, up: [..., K] -> silu(gate) * up as `fp8.quantise_rows` gives it."""
    if not gate.is_cuda:
        return fp8.quantise_rows(torch.nn.functional.silu(gate) * up)
    from sharegen.kernels import gated_rows as kernel  # which needs Triton

    rows, scales = kernel.gated_rows(gate.flatten(0, -2), up.flatten(0, -2), fp8.LEAST)
    return rows.view(gate.shape), scales.view(*gate.shape[:-1], 1)


@gated_rows.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = gate.new_empty(*gate.shape[:-1], 1, dtype=torch.float32)
    return gate.new_empty(gate.shape, dtype=fp8.E4M3), scales


class GatesIntoRows(CustomGraphPass):  # type: ignore[misc]
    """Puts `gated_rows` in the place of wide rows that are quantised right after their gate."""

    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            found = _gate_and_up(node) if node.target in _QUANTISE else None
            if found is not None:
                with graph.inserting_before(node):
                    both = graph.call_function(torch.ops.sharegen.gated_rows.default, found)
                both.meta = node.meta
                node.replace_all_uses_with(both)
                product = node.args[0]
                graph.erase_node(node)
                graph.erase_node(product)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _gate_and_up(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What silu is applied to and multiplied with, if that is all that is quantised here."""
    product = node.args[0]
    if not isinstance(product, fx.Node) or product.target not in _PRODUCTS:
        return None
    if len(product.users) > 1 or len(product.args) != 2 or product.kwargs:
        return None
    for activation, up in (product.args, reversed(product.args)):
        if (
            isinstance(activation, fx.Node)
            and isinstance(up, fx.Node)
            and activation.target is torch.nn.functional.silu
            and _are_wide(activation, up)
        ):
            gate = activation.args[0]
            return (gate, up) if isinstance(gate, fx.Node) else None
    return None


def _are_wide(one: fx.Node, other: fx.Node) -> bool:
    """Whether they are tensors of one size and dtype with wide rows, which the kernel can hold."""
    from sharegen.kernels.gated_rows import WIDEST  # which needs Triton

    first, second = (node.meta.get("example_value") for node in (one, other))
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        return False
    width = first.shape[-1]
    return (
        first.shape == second.shape
        and first.dtype == second.dtype
        and isinstance(width, int)
        and _LEAST_WIDTH <= width <= WIDEST
    )
