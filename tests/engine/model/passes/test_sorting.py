"""Experts' tokens sorted by few bits in a compiled layer; what comes of it is as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx

from sharegen.engine.model.passes.sorting import experts_sorted_by_few_bits

EXPERTS = 5


def grouped(chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As transformers' grouped experts do it; the number behind the last is another process's."""
    sorted_, order = torch.sort(chosen)
    counts = torch.histc(sorted_.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    return sorted_, order, torch.cumsum(counts, dim=0, dtype=torch.int32)


def uncounted(chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Numbers of nobody knows what."""
    sorted_, order = torch.sort(chosen)
    return sorted_, order, sorted_.float()


def downwards(chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sorted_, order = torch.sort(chosen, descending=True)
    return sorted_, order, torch.histc(sorted_.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)


def too_many(chosen: torch.Tensor) -> tuple[torch.Tensor, ...]:
    sorted_, order = torch.sort(chosen)
    return sorted_, order, torch.histc(sorted_.float(), bins=40_000, min=0, max=39_999)


def is_by_few_bits(function: Callable[..., tuple[torch.Tensor, ...]]) -> bool:
    """Whether the compiled function sorts 16 bits; its results are as they were."""
    found = False

    def compiled(traced: fx.GraphModule, _: object) -> fx.GraphModule:
        nonlocal found
        experts_sorted_by_few_bits(traced.graph)
        traced.graph.lint()
        traced.recompile()
        nodes = traced.graph.find_nodes(op="call_method", target="to")
        found = any(torch.int16 in node.args for node in nodes)
        return traced

    torch.compiler.reset()
    chosen = torch.randint(EXPERTS + 1, (64,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        results = torch.compile(function, dynamic=True, fullgraph=True, backend=compiled)(chosen)
        for result, expected in zip(results, function(chosen), strict=True):
            assert result.dtype == expected.dtype and torch.equal(result, expected)
    return found


@pytest.mark.turn(2)
def test_experts_are_sorted_by_few_bits() -> None:
    assert is_by_few_bits(grouped)


@pytest.mark.parametrize("function", [uncounted, downwards, too_many])
@pytest.mark.turn(2)
def test_what_is_no_such_sort_is_left_as_it_is(
    function: Callable[..., tuple[torch.Tensor, ...]],
) -> None:
    assert not is_by_few_bits(function)


def test_the_order_of_equal_numbers_is_the_same_by_16_bits() -> None:
    chosen = torch.randint(128, (8192,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.sort(chosen)[1], torch.sort(chosen.to(torch.int16))[1])
