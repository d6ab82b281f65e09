"""A gated MLP's activation in one kernel with the product before it, or with what comes after.

Model code says `down_proj(act_fn(gate_proj(x)) * up_proj(x))`, and the first two products are one
(`fusing.py`). In bfloat16 that one and the activation are one kernel, where there is one for it; a
projection in FP8 begins with the scales of its rows, and these and the activation are one where the
rows are wide, or where there is a scale for each 128 numbers. The compiler sees all of it, so this
is done in its graph, where nothing of the model's code has to be matched; other activations, and
what comes between, stay as they are.
"""

from __future__ import annotations

import operator

import torch
from torch import fx

from sharegen.engine.model.fp8 import blocks
from sharegen.engine.model.fp8 import products as fp8
from sharegen.engine.model.passes.graph_nodes import (
    erase_unused,
    is_call,
    is_method,
    shape_of,
    value_of,
)

_LEAST_WIDTH = 8192  # numbers of a row, of which the compiler reads fewer once

_PRODUCTS = (operator.mul, torch.mul)
_LINEAR = (torch.nn.functional.linear,)
_IN_TWO = ("split", "chunk")


@torch.library.custom_op("sharegen::gated_rows", mutates_args=())
def gated_rows(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return silu(gate) * up, of gate and up [..., K], as `fp8.quantise_rows` gives it."""
    if not gate.is_cuda:
        return fp8.quantise_rows(torch.nn.functional.silu(gate) * up)
    from sharegen.kernels import fp8_rows as kernels  # which needs Triton

    rows = kernels.gated_rows(gate.flatten(0, -2), up.flatten(0, -2), fp8.LEAST)
    return rows.numbers.view(gate.shape), rows.scales.view(*gate.shape[:-1], 1)


@gated_rows.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = gate.new_empty(*gate.shape[:-1], 1, dtype=torch.float32)
    return gate.new_empty(gate.shape, dtype=fp8.E4M3), scales


@torch.library.custom_op("sharegen::gated_groups", mutates_args=())
def gated_groups(
    gate: torch.Tensor, up: torch.Tensor, by_columns: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return silu(gate) * up, of gate and up [..., K], as `quantise_groups` of blocks gives it."""
    return blocks.as_products_take_it(gate.flatten(0, -2), up.flatten(0, -2), by_columns)


@gated_groups.register_fake
def _(gate: torch.Tensor, up: torch.Tensor, by_columns: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return blocks.made_of(gate, by_columns)


@torch.library.custom_op("sharegen::gated_product", mutates_args=())
def gated_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up [..., N]; x: [..., K], weight: [2 * N, K], the gate's rows first."""
    if not x.is_cuda:
        gate, up = torch.nn.functional.linear(x, weight).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    from sharegen.kernels import gated_product as kernels  # which needs Triton

    return kernels.gated_product(x.flatten(0, -2), weight).view(*x.shape[:-1], -1)


@gated_product.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0] // 2)


def gates_into_products(graph: fx.Graph) -> None:
    """Put `gated_product` in the place of a product of which nothing but its gate is wanted."""
    for node in [node for node in graph.nodes if is_call(node, _PRODUCTS)]:
        found = _gate_and_up(node)
        product = None if found is None else _joint_product(*found)
        if product is not None:
            with graph.inserting_before(node):
                both = graph.call_function(torch.ops.sharegen.gated_product.default, product)
            both.meta = node.meta
            node.replace_all_uses_with(both)
            erase_unused(graph, node)


def _joint_product(gate: fx.Node, up: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The factors of the product of which these are the two halves, if it has no other use."""
    if not (is_call(gate, (operator.getitem,)) and is_call(up, (operator.getitem,))):
        return None
    halves, numbers = gate.args[0], (gate.args[1], up.args[1])
    if halves is not up.args[0] or numbers != (0, 1) or not is_method(halves, *_IN_TWO):
        return None
    if any(len(node.users) > 1 for node in (gate, *gate.users, up)) or len(halves.users) > 2:
        return None
    product = halves.args[0]
    if not is_call(product, _LINEAR) or len(product.users) > 1:
        return None
    x, weight, *bias = (*product.args, *product.kwargs.values())
    if any(one is not None for one in bias):
        return None
    if not (isinstance(x, fx.Node) and isinstance(weight, fx.Node) and _suits(x, weight)):
        return None
    one, other, whole = (shape_of(node) for node in (gate, up, product))
    is_last = one[:-1] == other[:-1] == whole[:-1]  # the dimension that was cut in two
    return (x, weight) if is_last and one[-1] == other[-1] == whole[-1] // 2 else None


def _suits(x: fx.Node, weight: fx.Node) -> bool:
    """Whether there is a kernel for what they compute."""
    rows, factors = value_of(x), value_of(weight)
    if rows is None or factors is None or not rows.is_cuda:
        return False
    from sharegen.kernels.gated_product import suits  # which needs Triton

    return suits(rows, factors)


def gates_into_rows(graph: fx.Graph) -> None:
    """Put `gated_rows` in the place of wide rows that are quantised right after their gate, and
    `gated_groups` where they are quantised 128 numbers at a time.
    """
    for node in list(graph.nodes):
        if is_call(node, fp8.QUANTISE):
            gated, suits = torch.ops.sharegen.gated_rows.default, _are_wide
        elif is_call(node, blocks.QUANTISE_GROUPS):
            gated, suits = torch.ops.sharegen.gated_groups.default, _are_alike
        else:
            continue
        product, *how = node.args
        if not is_call(product, _PRODUCTS) or len(product.users) > 1:
            continue
        found = _gate_and_up(product)
        if found is not None and suits(*found):
            with graph.inserting_before(node):
                both = graph.call_function(gated, (*found, *how))
            both.meta = node.meta
            node.replace_all_uses_with(both)
            erase_unused(graph, node)


def _gate_and_up(product: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """What silu is applied to and multiplied with."""
    if len(product.args) != 2 or product.kwargs:
        return None
    for activation, up in (product.args, reversed(product.args)):
        if is_call(activation, (torch.nn.functional.silu,)):
            gate = activation.args[0]
            if isinstance(gate, fx.Node) and isinstance(up, fx.Node):
                return gate, up
    return None


def _are_wide(one: fx.Node, other: fx.Node) -> bool:
    """Whether they are alike, with wide rows, which the kernel can hold."""
    from sharegen.kernels.fp8_rows import WIDEST  # which needs Triton

    width = shape_of(one)[-1:]
    return (
        _are_alike(one, other) and isinstance(width[0], int) and _LEAST_WIDTH <= width[0] <= WIDEST
    )


def _are_alike(one: fx.Node, other: fx.Node) -> bool:
    """Whether they are tensors of one size and dtype."""
    first, second = value_of(one), value_of(other)
    return (
        first is not None
        and second is not None
        and first.shape == second.shape
        and first.dtype == second.dtype
    )
