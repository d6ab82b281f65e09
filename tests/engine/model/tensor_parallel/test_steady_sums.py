"""A rank's products before a sum are those whose rows do not depend on others, where asked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sharegen.engine.model.passes.steadying import HeldProducts
from sharegen.engine.model.steady.products import steady_for, steady_product
from sharegen.engine.model.tensor_parallel import ranks
from sharegen.engine.model.tensor_parallel.ranks import Ranks, alone


@pytest.mark.parametrize("onto", [False, True])
def test_a_rank_s_products_are_what_it_is_told(onto: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_linears", {})
    x, weight, base = torch.randn(1, 5, 32), torch.randn(12, 32), torch.randn(1, 5, 12)

    def product() -> torch.Tensor:
        with alone():
            if onto:
                return torch.ops.sharegen.linear_sum_onto(x, weight, base, "group")
            return torch.ops.sharegen.linear_sum(x, weight, "group")

    expected = product()
    steady_for((8,))
    Ranks.multiply_by(SimpleNamespace(_name="group"), steady_product)  # type: ignore[arg-type]
    torch.testing.assert_close(product(), expected)
    ranks._linears["group"] = lambda x, weight: x.new_full((len(x), len(weight)), 2.0)
    assert torch.equal(product(), (base if onto else 0) + torch.full((1, 5, 12), 2.0))


def test_the_pass_over_a_rank_s_layers_has_a_name_in_the_compiler_s_cache() -> None:
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    graph.output(graph.call_function(torch.nn.functional.linear, (x, weight)))
    HeldProducts()(graph)
    [call] = graph.find_nodes(op="call_function", target=torch.ops.sharegen.steady_product.default)
    assert call.args == (x, weight, None)
    assert HeldProducts().uuid() == HeldProducts().uuid()
