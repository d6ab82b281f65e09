"""Rotations of a compiled layer's queries and keys that become attention's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from sharegen.engine.model import interface
from sharegen.engine.model.interface import ValuesOnly
from sharegen.engine.model.passes.rotating import rotations_into_attention

SIZE, HEADS, KV_HEADS, HEAD_SIZE = 32, 4, 2, 8
ATTEND = torch.ops.sharegen.attend.default


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


class Attention(nn.Module):
    """As models of the Llama kind have it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q_proj = nn.Linear(SIZE, HEADS * HEAD_SIZE, bias=False)
        self.kv_proj = nn.Linear(SIZE, 2 * KV_HEADS * HEAD_SIZE, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        k, v = self.kv_proj(x).split(KV_HEADS * HEAD_SIZE, dim=-1)
        q, k, v = (
            y.view(*x.shape[:2], -1, HEAD_SIZE).transpose(1, 2) for y in (self.q_proj(x), k, v)
        )
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        q, k, v = (y[0].transpose(0, 1) for y in (q, k, v))
        return interface.attend_in_order(q, k, v, None) * 2 + self.beside(k)

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return (x * cos.unsqueeze(1)) + (rotate_half(x) * sin.unsqueeze(1))

    def beside(self, k: torch.Tensor) -> Any:
        return 0


class OtherWayRound(Attention):
    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return sin.unsqueeze(1) * rotate_half(x) + cos.unsqueeze(1) * x


class Normed(Attention):
    """The compiler does the rotation together with what comes before."""

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return super().rotate(nn.functional.normalize(x, dim=-1), cos, sin)


class Interleaved(Attention):
    """Neighbours are rotated against each other."""

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        return (x * cos.unsqueeze(1)) + (turned * sin.unsqueeze(1))


class Partial(Attention):
    """A part of each head is left as it is."""

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = HEAD_SIZE // 2
        first = super().rotate(x[..., :half], cos[..., :half], sin[..., :half])
        return torch.cat((first, x[..., half:]), dim=-1)


class Whole(Attention):
    """Phi-3's, of which the part that is rotated may be all."""

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        size = cos.shape[-1]
        rotated, left = x[..., :size], x[..., size:]
        return torch.cat([super().rotate(rotated, cos, sin), left], dim=-1)


class OtherHalf(Attention):
    """The sign is at the other half."""

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        half = HEAD_SIZE // 2
        turned = torch.cat((x[..., half:], -x[..., :half]), dim=-1)
        return (x * cos.unsqueeze(1)) + (turned * sin.unsqueeze(1))


class OfHeads(Attention):
    """Heads have angles of their own."""

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        by = torch.arange(1, x.shape[1] + 1)[:, None, None]
        return (x * (cos.unsqueeze(1) * by)) + (rotate_half(x) * (sin.unsqueeze(1) * by))


class Wanted(Attention):
    """Something else wants the rotated keys, too."""

    def beside(self, k: torch.Tensor) -> Any:
        return k.sum()


def is_part_of_attention(module: nn.Module) -> bool:
    """Whether the compiled module leaves the rotation to attention; its result is as it was."""
    found = False

    def compiled(traced: fx.GraphModule, _: object) -> fx.GraphModule:
        nonlocal found
        rotations_into_attention(traced.graph)
        traced.graph.lint()
        traced.recompile()
        [attention] = traced.graph.find_nodes(op="call_function", target=ATTEND)
        found = len(attention.args) == 6  # with the angles
        return traced

    torch.compiler.reset()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(1, 5, SIZE, generator=generator)
    angles = torch.randn(2, 1, 5, HEAD_SIZE, generator=generator)
    with torch.inference_mode(), interface.active(ValuesOnly()):
        result = torch.compile(module, dynamic=True, fullgraph=True, backend=compiled)(x, *angles)
        assert torch.equal(result, module(x, *angles))
    return found


@pytest.mark.parametrize("kind", [Attention, OtherWayRound, Whole])
@pytest.mark.turn(2)
def test_attention_rotates_queries_and_keys(kind: type[Attention]) -> None:
    assert is_part_of_attention(kind())


@pytest.mark.parametrize("kind", [Normed, Interleaved, Partial, OtherHalf, OfHeads, Wanted])
@pytest.mark.turn(2)
def test_what_is_no_such_rotation_is_left_as_it_is(kind: type[Attention]) -> None:
    assert not is_part_of_attention(kind())
