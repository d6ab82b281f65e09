"""What does not hold in a model is told: by name, and after trials."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from sharegen.engine.model.fp4.numbers import rounded
from sharegen.engine.model.fp8.products import FP8Linear, quantise_rows
from sharegen.engine.model.load import load_model
from sharegen.engine.model.loaded import LoadedModel
from sharegen.engine.model.steady import telling
from sharegen.engine.model.steady.holding import hold_products
from sharegen.engine.model.steady.telling import (
    groups_are_steady,
    not_steady,
    rows_that_differ,
)
from sharegen.kernels.fp4_words import LARGEST_SCALE, pack, widen

ROWS = (32, 64, 128)
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    module = LlamaForCausalLM(LlamaConfig(**SMALL))
    module.extra = FP8Linear(*quantise_rows(torch.randn(24, 32)), None)
    with_experts = Qwen3MoeConfig(**SMALL, num_experts=4, num_experts_per_tok=2,
                                  moe_intermediate_size=16, head_dim=8)  # fmt: skip
    module.experts = Qwen3MoeForCausalLM(with_experts).model.layers[0].mlp.experts
    loaded = load_model(module)
    with loaded.changing():
        hold_products(loaded, ROWS)
    loaded.trial_forward(4, 4)
    yield loaded
    loaded.release()


def test_nothing_is_told_where_all_holds(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telling, "groups_are_steady", lambda *given: True)  # for a GPU's
    assert not list(not_steady(model, ROWS))


def test_what_does_not_hold_is_named(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_rows(
        x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: None
    ) -> torch.Tensor:
        return x[:, :24] * (1 + (len(x) < 100))

    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 32))

    monkeypatch.setattr(telling, "multiply", by_rows)
    monkeypatch.setattr(telling, "groups_are_steady", lambda *given: False)
    model.model.other = Other()
    told = list(not_steady(model, ROWS))
    del model.model.other
    assert told == [
        "Other, which multiplies in a way of its own",
        "FP8 layers of (24, 32), with 32, 64 rows",
        "the experts' gate_up_proj",
        "the experts' down_proj",
    ]


def test_rows_whose_place_matters_are_found_too(model: LoadedModel) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        out[70:] *= 2.0
        return out

    assert rows_that_differ(product, (32, 32), ROWS, model) == [128]
    assert rows_that_differ(lambda x: x, (32, 32), ROWS, model) == []


@pytest.mark.parametrize(("few", "steady"), [(0, True), (8, False)])
def test_groups(model: LoadedModel, few: int, steady: bool) -> None:
    weight = torch.randn(12, 32, generator=torch.Generator().manual_seed(0))

    def groups(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Multiplies elementwise, and an expert of few rows otherwise."""
        counts = ends.diff(prepend=ends.new_zeros(1))
        by = weight[torch.arange(12).repeat_interleave(counts)]
        return x * by * (1 + (counts < few).float().repeat_interleave(counts))[:, None]

    assert groups_are_steady(groups, 12, 32, model) == steady


def test_groups_of_experts_in_mxfp4_are_tried() -> None:
    module = nn.Module()
    words, scales = pack(*rounded(torch.randn(3, 48, 160), LARGEST_SCALE))
    module.weight = nn.Parameter(words, requires_grad=False)
    module.weight_scale = nn.Parameter(scales, requires_grad=False)
    groups, experts, size = telling._groups(module, "weight")
    assert (experts, size) == (3, 256)  # as many as the kernel's stages have
    x = torch.randn(9, size)
    found = groups(x, torch.tensor([2, 2, 9], dtype=torch.int32))
    weight = widen(words, scales, size, torch.float32)
    torch.testing.assert_close(found[:2], x[:2] @ weight[0].t())
    torch.testing.assert_close(found[2:], x[2:] @ weight[2].t())
