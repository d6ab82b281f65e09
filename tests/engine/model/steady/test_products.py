"""On a GPU: the trial of linear layers whose sums the library is known to split."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from sharegen.engine.model.fp8.blocks import multiply_blocks, quantise_blocks
from sharegen.engine.model.steady import products
from sharegen.engine.model.steady.products import (
    block_ways_of,
    steady_block_product,
    steady_for,
    steady_product,
    tried,
    ways_of,
)
from sharegen.kernels.roles import is_hopper

ON_GPU = torch.cuda.is_available()
ROWS = (16, 32, 64, 128, 192, 256, 320, 512, 1024)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not ON_GPU, reason="needs a CUDA device"),
]


def drawn(
    size: int, width: int, has_bias: bool, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator("cuda").manual_seed(1)
    how = {"generator": generator, "device": "cuda"}
    x = torch.randn(1500, size, **how).to(dtype)  # type: ignore[call-overload]
    weight = (torch.randn(width, size, **how) / size**0.5).to(dtype)  # type: ignore[call-overload]
    bias = torch.randn(width, **how).to(dtype) if has_bias else None  # type: ignore[call-overload]
    return x, weight, bias


@pytest.mark.parametrize(
    ("size", "width", "has_bias"),
    [(14_336, 4096, False), (4096, 4096, False), (8192, 2048, False), (4096, 2048, False),
     (4096, 2880, True), (2880, 32, True), (1000, 264, False),
     (512, 16, False), (2048, 128, False), (2048, 1, False)],  # routers, and a gate of one output
)  # fmt: skip
def test_a_row_has_the_same_bits_among_any_number(size: int, width: int, has_bias: bool) -> None:
    steady_for(ROWS)
    x, weight, bias = drawn(size, width, has_bias)
    assert not ways_of(weight, bias).differing
    whole = steady_product(x, weight, bias)
    torch.testing.assert_close(whole, linear(x, weight, bias))
    for count in (1, 15, 16, 17, 33, 64, 100, 200, 256, 300, 1023, 1024, 1025):
        assert torch.equal(steady_product(x[:count], weight, bias), whole[:count]), count
    order = torch.randperm(1500, device="cuda")
    assert torch.equal(steady_product(x[order], weight, bias), whole[order])


def test_a_router_in_float32() -> None:
    steady_for(ROWS)
    x, weight, _ = drawn(4096, 64, False, torch.float32)
    assert not ways_of(weight, None).differing
    whole = steady_product(x, weight, None)
    for count in (1, 16, 33, 200, 1024):
        assert torch.equal(steady_product(x[:count], weight, None), whole[:count]), count


@pytest.mark.skipif(not is_hopper(torch.device("cuda")), reason="needs a Hopper card")
@pytest.mark.parametrize(
    ("size", "width"), [(8192, 2048), (2048, 2048), (4096, 6144), (12_288, 4096), (7168, 512)]
)
def test_a_row_of_fp8_by_blocks(size: int, width: int) -> None:
    steady_for(ROWS)
    x, weight, _ = drawn(size, width, False)
    quantised = quantise_blocks(weight)
    assert not block_ways_of(quantised[0]).differing

    def product(x: torch.Tensor) -> torch.Tensor:
        numbers, own = torch.ops.sharegen.quantise_groups(x, True)
        return steady_block_product(numbers, own, *quantised)[: len(x)]

    whole = product(x)
    torch.testing.assert_close(whole, multiply_blocks(x, *quantised))
    for count in (1, 15, 16, 17, 33, 64, 100, 200, 256, 300, 1023, 1024, 1025):
        assert torch.equal(product(x[:count]), whole[:count]), count
    order = torch.randperm(1500, device="cuda")
    assert torch.equal(product(x[order]), whole[order])


def test_an_odd_shape_holds_for_all_numbers_of_rows_that_are_not_told() -> None:
    steady_for(ROWS)
    x, weight, _ = drawn(999, 48, False)  # no kernel reads rows of 1,998 bytes
    ways = ways_of(weight, None)
    assert len(ways.differing) < len(ROWS) // 2
    held = [rows for rows in ROWS if rows not in ways.differing]
    whole = ways.multiply(x[: held[-1]], weight, None)
    for rows in held:
        assert torch.equal(ways.multiply(x[:rows], weight, None), whole[:rows])


@pytest.mark.skipif(not is_hopper(torch.device("cuda")), reason="needs a Hopper card")
def test_where_the_library_splits_sums_our_kernel_takes_its_place() -> None:
    steady_for(ROWS)
    _, weight, _ = drawn(14_336, 4096, False)
    x = torch.randn(1024, 14_336, device="cuda").bfloat16()
    whole = linear(x, weight)
    splits = [rows for rows in ROWS if not torch.equal(linear(x[:rows], weight), whole[:rows])]
    ways = ways_of(weight, None)
    assert splits and 1024 not in splits
    for rows in ROWS:
        is_library = ways.by_rows[rows].multiply is linear
        assert not is_library or rows not in splits or ways.by_rows[rows].rows != rows
        assert torch.equal(ways.multiply(x[:rows], weight, None), whole[:rows])


def test_inside_a_graph_and_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_for(ROWS)
    x, weight, _ = drawn(14_336, 4096, False)
    expected = steady_product(x, weight)
    compiled = torch.compile(steady_product, dynamic=True, fullgraph=True)
    for count in (16, 64):
        given = x[:count].clone()
        with torch.inference_mode():
            compiled(given, weight)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = compiled(given, weight)
            graph.replay()
        assert torch.equal(out, expected[:count])


def test_the_trial_is_made_once_for_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    steady_for(ROWS)
    _, weight, _ = drawn(512, 256, False)
    ways = ways_of(weight, None)
    monkeypatch.setattr(products, "try_ways", None)
    assert ways_of(weight.clone(), None) is ways
    assert ways in tried().values()
    steady_for(ROWS[:3])
    assert ways_of(weight, None) is ways
