"""FP8 by blocks, with a library that splits the sums of few rows as real ones do."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from sharegen.engine.model.fp8 import blocks
from sharegen.engine.model.fp8.blocks import (
    FP8BlockLinear,
    quantise_blocks,
    widened,
    widened_groups,
)
from sharegen.engine.model.passes.graph_passes import GraphPasses
from sharegen.engine.model.steady import products
from sharegen.engine.model.steady.holding import _steady_forward
from sharegen.engine.model.steady.products import block_ways_of, steady_block_product, steady_for

ROWS = (16, 32, 64, 128)
STEADY = torch.ops.sharegen.steady_block_product.default


def splitting(
    rows: torch.Tensor, own: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor
) -> torch.Tensor:
    """The product of fewer than 64 rows in two parts, which are then added up."""
    x, y = widened_groups(rows, own.t()), widened(weight, scales)
    parts = 2 if len(rows) < 64 else 1
    sums = []
    for of_x, of_y in zip(x.tensor_split(parts, 1), y.tensor_split(parts, 1), strict=True):
        total = torch.zeros(len(x), len(y))
        for k in range(of_x.shape[1]):
            total += of_x[:, k, None] * of_y[:, k]
        sums.append(total)
    return torch.stack(sums).cumsum(0)[-1].bfloat16()


@pytest.fixture
def quantised(monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight, of whose products this is the library's; nothing of the trial is kept."""

    def multiplied(
        x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: object = None
    ) -> torch.Tensor:
        numbers, own = torch.ops.sharegen.quantise_groups(x, True)
        return splitting(numbers, own, weight, scales)[: len(x)]

    monkeypatch.setattr(products, "scaled_product", splitting)
    monkeypatch.setattr(products, "multiply_blocks", multiplied)
    monkeypatch.setattr(products, "_tried", {})
    monkeypatch.setattr(products, "_sizes", ())
    steady_for(ROWS)
    torch.manual_seed(0)
    return quantise_blocks(torch.randn(128, 128).repeat(1, 2))


def test_few_rows_are_multiplied_among_more(quantised: tuple[torch.Tensor, torch.Tensor]) -> None:
    ways = block_ways_of(quantised[0])
    assert not ways.differing
    assert [ways.rows_together(count) for count in (4, 16, 32, 64, 100, 128, 300)] == [
        *(ways.rows_together(16),) * 2, ways.rows_together(32), 64, 128, 128, 128,
    ]  # fmt: skip
    assert ways.rows_together(16) in (64, 128)


def test_a_row_has_the_same_bits_among_any_number(
    quantised: tuple[torch.Tensor, torch.Tensor],
) -> None:
    half = torch.randn(300, 128)
    x = torch.cat([half, -half], 1).bfloat16()  # of its sums the rounding is left

    def product(count: int) -> torch.Tensor:
        numbers, own = torch.ops.sharegen.quantise_groups(x[:count], True)
        return steady_block_product(numbers, own, *quantised)[:count]

    whole = product(300)
    few, own = torch.ops.sharegen.quantise_groups(x[:16], True)
    assert not torch.equal(splitting(few, own, *quantised), whole[:16])  # what is mended
    for count in (1, 4, 16, 33, 64, 100, 128, 129):
        assert torch.equal(product(count), whole[:count]), count


def test_nothing_of_the_trial_s_weight_is_kept(
    quantised: tuple[torch.Tensor, torch.Tensor],
) -> None:
    gc.collect()
    before = {id(each) for each in gc.get_objects() if isinstance(each, torch.Tensor)}
    block_ways_of(quantised[0])
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
    assert not [each.shape for each in left if id(each) not in before]


def test_the_shape_is_named_as_what_it_is(quantised: tuple[torch.Tensor, torch.Tensor]) -> None:
    block_ways_of(quantised[0])
    assert [str(shape) for shape in products.tried()] == ["256 -> 128 in FP8 by blocks"]


def test_an_uncompiled_layer_asks_for_it(
    quantised: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where the product is an operator."""
    asked = []

    def on_a_gpu(
        x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: object
    ) -> torch.Tensor:
        numbers, own = torch.ops.sharegen.quantise_groups(x, True)
        out: torch.Tensor = torch.ops.sharegen.block_product(numbers, own, weight, scales)
        return out[: len(x)]

    def noted(*given: torch.Tensor) -> torch.Tensor:
        asked.append(len(given[0]))
        return splitting(*given)

    monkeypatch.setattr(blocks, "multiply_blocks", on_a_gpu)
    monkeypatch.setattr(products, "scaled_product", noted)
    layer, x = FP8BlockLinear(*quantised, None), torch.randn(16, 256).bfloat16()
    found = _steady_forward(layer, x)
    assert asked == [block_ways_of(layer.weight).rows_together(16)]
    assert found.shape == (16, 128)


def test_a_compiled_graph_has_it() -> None:
    graph = torch.fx.Graph()
    given = [graph.placeholder(name) for name in ("rows", "own", "weight", "scales")]
    graph.output(graph.call_function(torch.ops.sharegen.block_product, tuple(given)))
    GraphPasses(steady=True)(graph)
    torch.fx.GraphModule(nn.Module(), graph)
    assert [node.target for node in graph.nodes if node.op == "call_function"] == [STEADY]


def test_what_it_returns_while_the_compiler_traces() -> None:
    steady_for(ROWS)
    weight, scales = quantise_blocks(torch.randn(128, 256))
    numbers, own = torch.ops.sharegen.quantise_groups(torch.randn(5, 256).bfloat16(), True)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(each) for each in (numbers, own, weight, scales)]
        out = steady_block_product(*fake)
    assert out.shape == (8, 128) and out.dtype is torch.bfloat16
