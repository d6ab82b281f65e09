"""A gated activation that goes into the rows of an FP8 product, in a compiled layer."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from sharegen.engine.model import fp8, gating

SIZE, WIDE = 32, 128
GATED_ROWS = torch.ops.sharegen.gated_rows.default


class GatedMLP(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def linear(out_features: int, in_features: int) -> fp8.FP8Linear:
            rows = fp8.quantise_rows(torch.randn(out_features, in_features, generator=generator))
            return fp8.FP8Linear(*rows, None)

        self.act_fn = activation
        self.gate_proj, self.up_proj = linear(WIDE, SIZE), linear(WIDE, SIZE)
        self.down_proj = linear(SIZE, WIDE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down_proj(self.join(self.act_fn(self.gate_proj(x)), self.up_proj(x)))

    def join(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return gate * up


class UpFirst(GatedMLP):
    def join(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return up * gate


class Joined(GatedMLP):
    """Something comes between, which also wants the product."""

    def join(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        product = gate * up
        return product + product.mean()


def calls(module: nn.Module) -> int:
    """How often the compiled module calls the kernel's operator; its result is as it was."""
    found = 0

    def compiled(traced: fx.GraphModule, _: object) -> fx.GraphModule:
        nonlocal found
        gating.gates_into_rows(traced.graph)
        traced.graph.lint()
        traced.recompile()
        found = len(traced.graph.find_nodes(op="call_function", target=GATED_ROWS))
        return traced

    torch.compiler.reset()
    x = torch.randn(1, 5, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        result = torch.compile(module, dynamic=True, fullgraph=True, backend=compiled)(x)
        assert torch.equal(result, module(x))
    return found


@pytest.mark.parametrize("kind", [GatedMLP, UpFirst])
def test_a_wide_gate_goes_into_the_rows(
    kind: type[GatedMLP], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gating, "_LEAST_WIDTH", WIDE)
    assert calls(kind(nn.SiLU())) == 1


def test_what_is_no_such_gate_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(GatedMLP(nn.SiLU())) == 0  # too narrow
    monkeypatch.setattr(gating, "_LEAST_WIDTH", WIDE)
    assert calls(GatedMLP(nn.GELU())) == 0
    assert calls(Joined(nn.SiLU())) == 0
