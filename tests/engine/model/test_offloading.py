"""Weights that move, and share what they shared."""

from __future__ import annotations

import pytest
import torch

from sharegen.engine.model.compile.fusing import fuse_projections, refresh, unfuse
from sharegen.engine.model.offloading import move, move_weights
from sharegen.errors import UsageError
from tests.engine.tiny_models import make_tiny

IDS = torch.arange(5, 25)[None]
CPU = torch.device("cpu")


@torch.no_grad()
def test_a_fused_and_tied_model_moves_as_it_is() -> None:
    model = make_tiny("gemma2")
    model.lm_head.weight = model.model.embed_tokens.weight
    replaced = fuse_projections(model)
    expected = model(input_ids=IDS, use_cache=False).logits
    for _ in range(2):
        move_weights(model, CPU)
        assert torch.equal(model(input_ids=IDS, use_cache=False).logits, expected)
        assert model.lm_head.weight is model.model.embed_tokens.weight
    first = model.get_submodule("model.layers.0.self_attn.q_proj")
    [q, *_] = [layer for _, name, layer in replaced if name == "q_proj"]
    assert q.weight.data_ptr() == first.weight.data_ptr()  # still a slice of the joint weight
    refresh(replaced)
    unfuse(replaced)
    assert (model(input_ids=IDS, use_cache=False).logits - expected).abs().max() <= 1e-5


def test_views_of_one_memory_stay_so() -> None:
    whole = torch.arange(12.0)
    tensors = [whole[2:8].view(2, 3), whole.view(3, 4).t(), whole, torch.ones(2)]
    expected = [tensor.clone() for tensor in tensors]
    move([*tensors, tensors[0]], CPU)
    assert all(map(torch.equal, tensors, expected))
    assert tensors[1].stride() == (1, 4)
    tensors[2][2] = 99.0
    assert tensors[0][0, 0] == 99.0 and tensors[1][2, 0] == 99.0


def test_packed_weights_are_named() -> None:
    class Packed(torch.Tensor):
        pass

    model = make_tiny("llama")
    packed = torch.ones(3).as_subclass(Packed)
    model.register_buffer("packed", packed)
    where = model.lm_head.weight.data_ptr()
    with pytest.raises(UsageError, match=r"packed \(Packed\) and stay where they are: use close"):
        move_weights(model, CPU)
    assert model.lm_head.weight.data_ptr() == where
