"""Linear layers, routers and compiled graphs go through the operator whose rows do not depend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from sharegen.engine.model.compile.fusing import fuse_projections
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.passes.graph_passes import GraphPasses
from sharegen.engine.model.steady import products
from sharegen.engine.model.steady.holding import hold_products, not_held

PRODUCT = torch.ops.sharegen.steady_product.default
GATED = torch.ops.sharegen.steady_gated_product.default


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight).softmax(-1)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.router = Router()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.router(self.linear(x))
        return result


@pytest.fixture
def model() -> Iterator[LoadedModel]:
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    module = LlamaForCausalLM(config)
    module.extra = Layer()
    loaded = load_model(module)
    yield loaded
    loaded.release()


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """The weights' shapes of what is multiplied steadily."""
    found: list[torch.Size] = []
    ways_of = products.ways_of

    def noted(weight: torch.Tensor, bias: torch.Tensor | None) -> object:
        found.append(weight.shape)
        return ways_of(weight, bias)

    monkeypatch.setattr(products, "ways_of", noted)
    return found


def test_every_linear_layer_of_a_model_until_it_is_released(
    model: LoadedModel, multiplied: list[torch.Size]
) -> None:
    expected = model.trial_forward(8, 8)
    with model.changing():
        fuse_projections(model.model)
        hold_products(model, (8, 64))
    assert model.steady
    torch.testing.assert_close(model.trial_forward(8, 8), expected)
    a_layer = [(64, 32), (32, 32), (96, 32), (32, 48)]
    assert multiplied == [torch.Size(shape) for shape in [*a_layer, *a_layer, (64, 32)]]
    with model.ours():
        assert "forward" in vars(model.model.lm_head)
    model.release()
    assert "forward" not in vars(model.model.lm_head)


def test_a_module_that_is_lent_has_its_own_products_outside_of_our_forwards(
    model: LoadedModel, multiplied: list[torch.Size]
) -> None:
    with model.changing():
        hold_products(model, (8,))
    x = torch.randn(3, 32, requires_grad=True)
    model.model.lm_head(x).sum().backward()
    assert x.grad is not None and not multiplied
    model.trial_forward(4, 4)
    assert len(multiplied) == 2 * 7 + 1


def test_what_is_compiled_is_left_to_the_compiler(
    model: LoadedModel, multiplied: list[torch.Size]
) -> None:
    with model.changing():
        hold_products(model, (8,), compiled=model.model.model.layers)
    model.trial_forward(8, 8)
    assert multiplied == [torch.Size((64, 32))]


def test_a_forward_that_somebody_else_put_there_is_theirs_again(
    model: LoadedModel, multiplied: list[torch.Size]
) -> None:
    head = model.model.lm_head
    own = nn.Linear.forward

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return own(head, x) * 2.0

    head.forward = theirs
    x = torch.randn(3, 32)
    with model.changing():
        hold_products(model, (8,))
        hold_products(model, (8,))  # once is enough
    with model.ours():
        torch.testing.assert_close(head(x), theirs(x))
    assert multiplied == [torch.Size((64, 32))]
    model.release()
    assert vars(head)["forward"] is theirs


def test_a_router_s_own_weight(multiplied: list[torch.Size], model: LoadedModel) -> None:
    x = torch.randn(5, 32)
    expected = model.model.extra(x)
    with model.changing():
        hold_products(model, (8,))
    with model.ours():
        torch.testing.assert_close(model.model.extra(x), expected)
    assert multiplied == [torch.Size((32, 32)), torch.Size((8, 32))]


def test_what_multiplies_in_another_way_is_named(model: LoadedModel) -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.T

    assert not list(not_held(model))
    model.model.others = nn.ModuleList([Other(), Other()])
    assert list(not_held(model)) == ["Other"]


def test_linear_layers_of_a_compiled_graph() -> None:
    layer = Layer()
    targets: list[object] = []

    def seen(graph: torch.fx.GraphModule, inputs: object) -> object:
        GraphPasses(steady=True)(graph.graph)
        graph.recompile()
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph

    products.steady_for((8,))
    x = torch.randn(5, 32)
    with torch.inference_mode():
        found = torch.compile(layer, backend=seen, fullgraph=True)(x)
        torch.testing.assert_close(found, layer(x))
    assert targets.count(PRODUCT) == 2
    assert torch.nn.functional.linear not in targets


def test_the_passes_tell_the_compiler_s_cache_which_they_are() -> None:
    assert GraphPasses().uuid() == GraphPasses().uuid() != GraphPasses(steady=True).uuid()


def test_gates_that_are_joined_to_their_product() -> None:
    graph = torch.fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    graph.output(graph.call_function(torch.ops.sharegen.gated_product.default, (x, weight)))
    GraphPasses(steady=True)(graph)
    module = torch.fx.GraphModule(nn.Module(), graph)
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [GATED]
    products.steady_for((8,))
    given = torch.randn(3, 16), torch.randn(20, 16)
    torch.testing.assert_close(module(*given), torch.ops.sharegen.gated_product(*given))


def test_the_operator_keeps_the_shape_of_what_it_is_given() -> None:
    products.steady_for((8,))
    x, weight, bias = torch.randn(2, 3, 16), torch.randn(20, 16), torch.randn(20)
    expected = nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(products.steady_product(x, weight, bias), expected)
    torch.library.opcheck(products.steady_product, (x, weight, bias), test_utils="test_schema")
