"""Attention that goes into the rows of an FP8 product, in a compiled layer."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from sharegen.engine.model import interface
from sharegen.engine.model.fp8 import products as fp8
from sharegen.engine.model.interface import ValuesOnly
from sharegen.engine.model.passes.attending import attention_into_rows

SIZE, HEADS, HEAD_SIZE = 32, 4, 8
ATTEND_ROWS = torch.ops.sharegen.attend_rows.default


class Attention(nn.Module):
    """As models have it, with sharegen's attention."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        rows = fp8.quantise_rows(torch.randn(SIZE, HEADS * HEAD_SIZE, generator=generator))
        self.o_proj = fp8.FP8Linear(*rows, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[1], HEADS, HEAD_SIZE)
        out = interface.attend_in_order(heads, heads, heads, None).unsqueeze(0).contiguous()
        return x + self.o_proj(self.between(out.reshape(*x.shape[:-1], -1).contiguous()))

    def between(self, out: torch.Tensor) -> torch.Tensor:
        return out


class Gated(Attention):
    """As the attention of Qwen3-Next."""

    def between(self, out: torch.Tensor) -> torch.Tensor:
        return out * torch.sigmoid(out.mean(dim=-1, keepdim=True))


class HeadByHead(Attention):
    """Each head is quantised by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.o_proj = fp8.FP8Linear(*fp8.quantise_rows(torch.eye(16, HEAD_SIZE)), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[1], HEADS, HEAD_SIZE)
        out = interface.attend_in_order(heads, heads, heads, None).unsqueeze(0).contiguous()
        return self.o_proj(out)


class Wanted(Attention):
    """Something else wants the result, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(x.shape[1], HEADS, HEAD_SIZE)
        out = interface.attend_in_order(heads, heads, heads, None).unsqueeze(0).contiguous()
        return self.o_proj(out.flatten(2)) + out.sum()


def calls(module: nn.Module) -> int:
    """How often the compiled module calls the operator; its result is as it was."""
    found = 0

    def compiled(traced: fx.GraphModule, _: object) -> fx.GraphModule:
        nonlocal found
        attention_into_rows(traced.graph)
        traced.graph.lint()
        traced.recompile()
        found = len(traced.graph.find_nodes(op="call_function", target=ATTEND_ROWS))
        return traced

    torch.compiler.reset()
    x = torch.randn(1, 5, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode(), interface.active(ValuesOnly()):
        result = torch.compile(module, dynamic=True, fullgraph=True, backend=compiled)(x)
        assert torch.equal(result, module(x))
    return found


def test_attention_goes_into_the_rows() -> None:
    assert calls(Attention()) == 1


@pytest.mark.parametrize("kind", [Gated, Wanted])
def test_what_is_wanted_otherwise_is_left_as_it_is(kind: type[Attention]) -> None:
    assert calls(kind()) == 0


def test_heads_that_are_no_row_are_left_as_they_are() -> None:
    assert calls(HeadByHead()) == 0


def test_heads_that_no_program_holds_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharegen.kernels.merge.WIDEST", HEADS * HEAD_SIZE // 2)
    assert calls(Attention()) == 0
