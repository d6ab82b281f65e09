"""Which keys and values are taken for what a layer made of one latent, and which are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sharegen.engine.model.attention.latents import SPREADING, LatentSpec, Spreads

HEADS, RANK, OF_LATENT, REST, VALUE, TOKENS = 2, 8, 4, 3, 5, 7


def found(
    spread: nn.Module | None = None,
    dtype: torch.dtype = torch.float32,
    change: Callable[[torch.Tensor, torch.Tensor], Any] = lambda k, v: None,
) -> LatentSpec | None:
    """The latent of a layer. spread: its projection; dtype: of queries; change: keys or values."""
    spread = spread or nn.Linear(RANK, HEADS * (OF_LATENT + VALUE), bias=False)
    layer = nn.Module()
    setattr(layer, SPREADING, spread)
    spreads = Spreads()
    weight = next(spread.parameters())
    with torch.no_grad(), spreads.watch(layer):
        made = spread(torch.randn(1, TOKENS, RANK, dtype=weight.dtype))
        heads = made.view(TOKENS, HEADS, -1).transpose(0, 1)[None]
        rest = torch.randn(1, 1, TOKENS, REST, dtype=made.dtype).expand(-1, HEADS, -1, -1)
        k = torch.cat([heads[..., :OF_LATENT], rest], dim=-1)
        v = heads[..., OF_LATENT:].clone()
        change(k, v)
        return spreads.of(layer, torch.zeros_like(k).to(dtype), k, v)


def test_keys_and_values_that_are_made_of_a_latent() -> None:
    assert found() == LatentSpec(RANK, OF_LATENT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_projection_in_another_dtype_than_the_queries_is_not_absorbed(dtype: torch.dtype) -> None:
    assert found(dtype=dtype) is None
    same = nn.Linear(RANK, HEADS * (OF_LATENT + VALUE), bias=False, dtype=dtype)
    assert found(same, dtype) == LatentSpec(RANK, OF_LATENT)


def test_a_projection_that_does_more_than_multiply_is_not_absorbed() -> None:
    assert found(nn.Linear(RANK, HEADS * (OF_LATENT + VALUE))) is None

    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert found(Scaled(RANK, HEADS * (OF_LATENT + VALUE), bias=False)) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda k, v: k[0, 1, 2, 0].add_(1),  # of the latent
        lambda k, v: k[0, 1, 2, -1].add_(1),  # of the rest, which all heads have in common
        lambda k, v: v[0, 0, 3, 1].add_(1),
        lambda k, v: v[0, 0, 3, 1].fill_(torch.nan),
    ],
)
def test_what_was_changed_is_kept_as_it_is(change: Callable[..., Any]) -> None:
    assert found(change=change) is None
