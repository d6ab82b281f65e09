"""A gated activation as one kernel with the product before it or the rows after it, compiled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn

from sharegen.engine.model.compile.fusing import fuse_projections
from sharegen.engine.model.fp8 import products as fp8
from sharegen.engine.model.fp8.blocks import FP8BlockLinear
from sharegen.engine.model.passes import gating
from sharegen.engine.model.passes.graph_passes import GraphPasses
from sharegen.kernels import gated_product as kernels
from sharegen.kernels.roles import is_hopper

SIZE, WIDE = 32, 128
GATED_ROWS = torch.ops.sharegen.gated_rows.default
GATED_GROUPS = torch.ops.sharegen.gated_groups.default
GATED_PRODUCT = torch.ops.sharegen.gated_product.default


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


def calls(
    module: nn.Module,
    into: Callable[[fx.Graph], None] = gating.gates_into_rows,
    operator: object = GATED_ROWS,
) -> int:
    """How often the compiled module calls the kernel's operator; its result is as it was."""
    found = 0

    def compiled(traced: fx.GraphModule, _: object) -> fx.GraphModule:
        nonlocal found
        into(traced.graph)
        traced.graph.lint()
        traced.recompile()
        found = len(traced.graph.find_nodes(op="call_function", target=operator))
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


@pytest.mark.slow
def test_what_is_no_such_gate_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calls(GatedMLP(nn.SiLU())) == 0  # too narrow
    monkeypatch.setattr(gating, "_LEAST_WIDTH", WIDE)
    assert calls(GatedMLP(nn.GELU())) == 0
    assert calls(Joined(nn.SiLU())) == 0


class InBlocks(GatedMLP):
    """Its weights are FP8 by blocks."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__(activation)
        for name, layer in list(self.named_children()):
            if isinstance(layer, fp8.FP8Linear):
                weight = layer.weight.float() * layer.weight_scale
                setattr(self, name, FP8BlockLinear(*in_whole_blocks(weight), None))


def in_whole_blocks(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight of one block in e4m3, and its scale."""
    scales = weight.abs().amax()[None, None] / 448
    return (weight / scales).to(fp8.E4M3), scales


@pytest.mark.slow
def test_any_gate_goes_into_groups() -> None:
    assert calls(InBlocks(nn.SiLU()), operator=GATED_GROUPS) == 1
    assert calls(InBlocks(nn.GELU()), operator=GATED_GROUPS) == 0


class PlainMLP(nn.Module):
    """As model code has it; its projections become one."""

    def __init__(self, activation: nn.Module | None = None, *, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.act_fn = activation or nn.SiLU()
        self.gate_proj, self.up_proj = (nn.Linear(SIZE, WIDE, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(WIDE, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class UpTimesGate(PlainMLP):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.act_fn(self.gate_proj(x))
        return self.down_proj(self.up_proj(x) * gate)


class OneWeight(PlainMLP):
    """Phi-3's: one projection, cut in two."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(SIZE, 2 * WIDE, bias=False)
        del self.gate_proj, self.up_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * self.act_fn(gate))


class GateSecond(OneWeight):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up, gate = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(up * self.act_fn(gate))


class CutAcross(OneWeight):
    """The halves are tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(torch.cat([x, x + 1], dim=1)).chunk(2, dim=1)
        return (up * self.act_fn(gate)).sum(-1)


class GateToo(PlainMLP):
    """The gate itself is wanted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.act_fn(self.gate_proj(x))
        return self.down_proj(gate * self.up_proj(x)) + gate.mean()


@pytest.fixture
def with_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gating, "_suits", lambda x, weight: True)


def fused(module: nn.Module) -> int:
    fuse_projections(module)  # type: ignore[arg-type]
    return calls(module, gating.gates_into_products, GATED_PRODUCT)


@pytest.mark.parametrize("kind", [PlainMLP, UpTimesGate, OneWeight])
def test_a_gate_goes_into_the_product(kind: type[nn.Module], with_a_kernel: None) -> None:
    assert fused(kind()) == 1


@pytest.mark.parametrize("kind", [GateSecond, CutAcross, GateToo])
def test_another_use_of_the_product_is_left_as_it_is(
    kind: type[nn.Module], with_a_kernel: None
) -> None:
    assert fused(kind()) == 0


def test_another_activation_or_a_bias_is_left_as_it_is(with_a_kernel: None) -> None:
    assert fused(PlainMLP(nn.GELU())) == 0
    assert fused(PlainMLP(bias=True)) == 0


def test_without_a_kernel_the_compiler_writes_its_own() -> None:
    assert fused(PlainMLP()) == 0


@pytest.mark.gpu
@pytest.mark.skipif(not is_hopper(torch.device("cuda")), reason="needs a Hopper card")
@pytest.mark.parametrize("tokens", [40, 600])
def test_compiled_layers_call_the_kernel(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def noted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return multiply(x, weight)

    multiply = kernels.gated_product
    monkeypatch.setattr(kernels, "gated_product", noted)
    torch.compiler.reset()
    module = PlainMLP().to("cuda", torch.bfloat16)
    x = torch.randn(2, tokens // 2, SIZE, device="cuda", dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = module(x)
        fuse_projections(module)  # type: ignore[arg-type]
        options = {"pre_grad_custom_pass": GraphPasses()}
        run = torch.compile(module, dynamic=True, fullgraph=True, options=options)
        torch.testing.assert_close(run(x), expected, rtol=0.02, atol=0.02)
    assert seen == [(tokens, SIZE)]
