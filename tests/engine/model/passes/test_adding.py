"""Residuals that are added where ranks add up a product."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from sharegen.engine.model.fp8.products import quantise_rows
from sharegen.engine.model.passes.adding import SumsOntoResiduals
from sharegen.engine.model.tensor_parallel.ranks import alone

SUM, ONTO = torch.ops.sharegen.linear_sum.default, torch.ops.sharegen.linear_sum_onto.default


def changed(function: Callable[..., torch.Tensor], *arguments: torch.Tensor) -> list[object]:
    """What the graph of a function calls after the pass; its result is the same to the bit."""
    with alone():
        traced: fx.GraphModule = make_fx(function, tracing_mode="fake")(*arguments)
        SumsOntoResiduals()(traced.graph)
        traced.graph.lint()
        traced.recompile()
        assert torch.equal(traced(*arguments), function(*arguments))
    return [node.target for node in traced.graph.nodes if node.op == "call_function"]


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.sharegen.linear_sum(x, weight, "")


X, WEIGHT, RESIDUAL = torch.randn(1, 5, 8), torch.randn(6, 8), torch.randn(1, 5, 6)
ARGUMENTS = X.bfloat16(), WEIGHT.bfloat16(), RESIDUAL.bfloat16()


def test_a_residual_goes_into_the_sum() -> None:
    for function in (lambda x, w, r: (r + product(x, w)).relu(),
                     lambda x, w, r: (product(x, w) + r).relu()):  # fmt: skip
        targets = changed(function, *ARGUMENTS)
        assert targets == [ONTO, torch.ops.aten.relu.default]


def test_a_residual_goes_into_the_sum_of_fp8_products() -> None:
    x, weight, residual = ARGUMENTS
    rows, scales = quantise_rows(x)
    columns, column_scales = quantise_rows(weight)

    def function(*product: torch.Tensor) -> torch.Tensor:
        *operands, r = product
        return (r + torch.ops.sharegen.fp8_linear_sum(*operands, r.dtype, "")).relu()

    targets = changed(function, rows, scales, columns, column_scales, residual)
    onto = torch.ops.sharegen.fp8_linear_sum_onto.default
    assert targets == [onto, torch.ops.aten.relu.default]


def test_two_sums_onto_one_residual() -> None:
    """As layers have them whose attention and MLP stand side by side."""
    targets = changed(lambda x, w, r: r + product(x, w) + product(x * 2, w), *ARGUMENTS)
    assert targets.count(ONTO) == 2 and SUM not in targets


def test_what_is_no_residual_of_the_sum_stays() -> None:
    x, weight, residual = ARGUMENTS
    for function in (
        lambda x, w, r: r + product(x, w).relu(),  # something in between
        lambda x, w, r: torch.add(r, product(x, w), alpha=2),
        lambda x, w, r: product(x, w) + 1,
        lambda x, w, r: product(x, w) + r[..., :1],  # of another shape
        lambda x, w, r: product(x, w) + r.float(),
        lambda x, w, r: (y := product(x, w)) + y,
        lambda x, w, r: (r + (y := product(x, w))) * y,  # which is wanted by itself, too
    ):
        assert ONTO not in changed(function, x, weight, residual)
