"""Products whose rows do not depend on others, in the place of those of compiled layers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

import sharegen.engine.model.passes.gating  # noqa: F401  (it registers a product that is replaced)
from sharegen.engine.model.fp8.blocks import BLOCK_PRODUCT
from sharegen.engine.model.passes.graph_nodes import is_call
from sharegen.engine.model.steady.products import steady_product, ways_of
from sharegen.engine.model.steady.ways import ProductShape

_LINEAR = (torch.nn.functional.linear,)
_NAMES = ("input", "weight", "bias")
_TRIAL_ROWS = (512, 1100)  # a round number, and one with an end of a tile


@torch.library.custom_op("sharegen::steady_gated_product", mutates_args=())
def steady_gated_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """`gated_product`, with bits of a row that do not depend on the others."""
    if not x.is_cuda:
        gate, up = steady_product(x, weight).chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up
    from sharegen.kernels import gated_product as kernels  # which needs Triton

    rows = x.flatten(0, -2)
    if len(rows) >= kernels.LEAST_ROWS and _is_same(
        ProductShape(weight.shape[1], len(weight), weight.dtype, False, weight.device)
    ):
        out = kernels.gated_product(rows, weight)
    else:
        out = kernels.gated(ways_of(weight, None).multiply(rows, weight, None))
    return out.view(*x.shape[:-1], -1)


@steady_gated_product.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0] // 2)


@cache
def _is_same(shape: ProductShape) -> bool:
    """Whether the one kernel gives the bits of the product and the activation behind it."""
    from sharegen.kernels import gated_product as kernels

    generator = torch.Generator(shape.device).manual_seed(1)
    how = {"generator": generator, "device": shape.device, "dtype": shape.dtype}
    x = torch.randn(_TRIAL_ROWS[-1], shape.size, **how)  # type: ignore[call-overload]
    weight = torch.randn(shape.width, shape.size, **how).mul_(shape.size**-0.5)  # type: ignore[call-overload]
    expected = kernels.gated(ways_of(weight, None).multiply(x, weight, None))
    return all(
        torch.equal(kernels.gated_product(x[:count], weight), expected[:count])
        for count in _TRIAL_ROWS
    )


class HeldProducts(CustomGraphPass):  # type: ignore[misc]
    """`products_held` alone, where layers are one rank's and have no other passes."""

    def __call__(self, graph: fx.Graph) -> None:
        products_held(graph)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def products_held(graph: fx.Graph) -> None:
    """Put `steady_product` in the place of linear layers, and its like in that of FP8 by blocks.

    Gates were joined to their products before.
    """
    for node in graph.nodes:
        if is_call(node, _LINEAR):
            given = dict(zip(_NAMES, node.args, strict=False)) | node.kwargs
            node.target = torch.ops.sharegen.steady_product.default
            node.args = tuple(given.get(name) for name in _NAMES)
            node.kwargs = {}
        elif is_call(node, (torch.ops.sharegen.gated_product.default,)):
            node.target = torch.ops.sharegen.steady_gated_product.default
        elif is_call(node, BLOCK_PRODUCT):
            node.target = torch.ops.sharegen.steady_block_product.default
