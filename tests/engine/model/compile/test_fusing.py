"""Fused projections: the same numbers from fewer products, and the way back."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from sharegen.engine.model.compile.fusing import fuse_projections, refresh, unfuse
from sharegen.engine.model.fp8.blocks import FP8BlockLinear, quantise_blocks
from sharegen.engine.model.load import load_model
from sharegen.engine.model.states.mixers import HANDS_STATES_OVER
from tests.engine.jobs import GREEDY, forest, judge, make_engine, requests_of, run
from tests.engine.tiny_models import make_tiny, tiny_config

NEEDS_HYBRIDS = pytest.mark.skipif(not HANDS_STATES_OVER, reason="transformers 5.23 or later")
IDS = torch.arange(5, 25)[None]


# Separate q, k and v with and without biases; fused by the model itself (phi3); experts (mixtral);
# a MLP that asks for up_proj first (falcon_h1).
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "mixtral", "falcon_h1"])
@torch.no_grad()
def test_a_fused_model_computes_the_same_and_goes_back(name: str) -> None:
    model = make_tiny(name)
    wanted = model(input_ids=IDS, use_cache=False).logits
    before = {key: weight.clone() for key, weight in model.named_parameters()}
    replaced = fuse_projections(model)
    assert {place for _, place, _ in replaced} >= {"q_proj", "k_proj", "v_proj"}
    assert type(model.get_submodule("model.layers.0.self_attn.q_proj")) is not nn.Linear
    fused = model(input_ids=IDS, use_cache=False).logits
    assert (fused - wanted).abs().max() <= 1e-5
    unfuse(replaced)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits, wanted)


@pytest.mark.parametrize("kv_heads", [2, 1])
@torch.no_grad()
def test_fp8_blocks_are_fused_where_they_are_whole(kv_heads: int) -> None:
    """A half of a block is left: the next projection's rows would begin in it."""
    config = tiny_config("qwen2")
    config.hidden_size, config.intermediate_size, config.head_dim = 256, 384, 64
    config.num_attention_heads, config.num_key_value_heads = 4, kv_heads
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for layer in list(model.model.layers):
        for owner in (layer.self_attn, layer.mlp):
            for name, one in list(owner.named_children()):
                if type(one) is nn.Linear:
                    rows = nn.functional.pad(one.weight, (0, 0, 0, -one.out_features % 128))
                    values, scales = quantise_blocks(rows)
                    bias = None if one.bias is None else one.bias.data
                    blocks = FP8BlockLinear(values[: one.out_features].clone(), scales, bias)
                    setattr(owner, name, blocks)
    wanted = model(input_ids=IDS, use_cache=False).logits
    replaced = fuse_projections(model)
    found = {place for _, place, _ in replaced}
    attention = {"q_proj", "k_proj", "v_proj"} if kv_heads == 2 else set()
    assert found == {"gate_proj", "up_proj"} | attention
    torch.testing.assert_close(model(input_ids=IDS, use_cache=False).logits, wanted)
    unfuse(replaced)
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits, wanted)


@NEEDS_HYBRIDS
@pytest.mark.parametrize(
    ("name", "place"), [("qwen3_5", "in_proj_qkv"), ("qwen3_next", "in_proj_qkvz")]
)
@torch.no_grad()
def test_what_goes_into_a_mixer_is_one_product(name: str, place: str) -> None:
    model = make_tiny(name)
    wanted = model(input_ids=IDS, use_cache=False).logits
    replaced = fuse_projections(model)
    names = [key for _, key, _ in replaced if key.startswith("in_proj")]
    assert names[0] == place and len(names) in (2, 3) and "in_proj_z" not in names
    fused = model(input_ids=IDS, use_cache=False).logits
    # qwen3_next's experts make 9e-5 of embeddings that differ by a ten-millionth.
    assert (fused - wanted).abs().max() <= (1e-5 if name == "qwen3_5" else 2e-4)
    unfuse(replaced)
    assert torch.equal(model(input_ids=IDS, use_cache=False).logits, wanted)


def test_a_job_on_fused_projections_is_exact() -> None:
    loaded = load_model(make_tiny("qwen2"))
    with loaded.changing():
        assert len(fuse_projections(loaded.model)) == 2 * 5  # layers, of which each has five
    for completion in run(make_engine(loaded), requests_of(forest(), GREEDY)).completions.values():
        judge(completion, "qwen2")


@torch.no_grad()
def test_the_fused_weight_takes_no_memory_twice() -> None:
    model = make_tiny("llama")
    for module, place, layer in fuse_projections(model):
        first = getattr(module, "q_proj" if place[0] in "qkv" else "gate_proj")
        storage = first.weight.untyped_storage()
        assert layer.weight.untyped_storage().data_ptr() == storage.data_ptr()


class Scaled(nn.Linear):
    """A linear layer that is not only a product, as quantised ones are."""


@torch.no_grad()
def test_what_is_no_plain_product_is_left_alone() -> None:
    model = make_tiny("llama")
    first, second = (layer.self_attn for layer in model.model.layers)
    first.k_proj.__class__ = Scaled
    second.v_proj.to(torch.float64)
    places = [(module, place) for module, place, _ in fuse_projections(model)]
    assert [place for _, place in places] == ["gate_proj", "up_proj"] * 2
    assert type(first.q_proj) is type(second.q_proj) is nn.Linear
    assert not fuse_projections(make_tiny("phi3"))  # its projections are one product already


def weights_of(model: PreTrainedModel) -> dict[str, nn.Parameter]:
    attention = model.get_submodule("model.layers.0.self_attn")
    return {name: attention.get_submodule(name).weight for name in ("q_proj", "k_proj", "v_proj")}  # type: ignore[misc]


@torch.no_grad()
def test_slices_of_a_joint_weight_are_trained_as_they_are() -> None:
    model = make_tiny("qwen2")
    optimiser = torch.optim.SGD(model.parameters(), lr=1.0)
    replaced = fuse_projections(model, is_lent=True)
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, 0.5)
    for _, _, layer in replaced:
        layer.weight.grad = torch.full_like(layer.weight, 0.5)
    optimiser.step()
    fused = model(input_ids=IDS, use_cache=False).logits
    unfuse(replaced, is_lent=True)
    assert (model(input_ids=IDS, use_cache=False).logits - fused).abs().max() <= 1e-5
    for weight in model.parameters():  # each has memory of its own again
        assert weight.untyped_storage().nbytes() == weight.nbytes


@torch.no_grad()
def test_weights_that_others_reach_are_copied_and_those_that_moved_taken_over() -> None:
    model = make_tiny("llama")
    weights = weights_of(model)
    flat = torch.cat([weight.data.flatten() for weight in weights.values()])
    for weight, part in zip(weights.values(), flat.split([w.numel() for w in weights.values()]),
                            strict=True):  # fmt: skip
        weight.data = part.view_as(weight)  # as ZeRO lays them out
    layer = model.get_submodule("model.layers.1.self_attn")
    layer.k_proj.weight = layer.v_proj.weight  # tied
    replaced = fuse_projections(model, is_lent=True)
    joint = model.get_submodule("model.layers.0.self_attn.q_proj").weight
    address = joint.data_ptr()
    flat += 1.0
    assert all(weight.data_ptr() != joint.data_ptr() for weight in weights.values())
    torch.testing.assert_close(joint + 1.0, torch.cat(list(weights.values())))
    refresh(replaced)
    assert torch.equal(joint, torch.cat(list(weights.values())))
    up = next(one for _, name, one in replaced if name == "up_proj")
    up.weight.data = up.weight.data + 1.0
    next(one for _, name, one in replaced if name == "gate_proj").weight = nn.Parameter(
        up.weight.data * 2
    )
    refresh(replaced)
    fused = model(input_ids=IDS, use_cache=False).logits
    assert joint.data_ptr() == address
    unfuse(replaced, is_lent=True)
    assert layer.k_proj.weight is layer.v_proj.weight
    assert weights["k_proj"].data_ptr() == flat.data_ptr() + weights["q_proj"].nbytes
    assert (model(input_ids=IDS, use_cache=False).logits - fused).abs().max() <= 1e-5
