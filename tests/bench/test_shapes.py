"""Shapes and workloads: what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig

from sharegen.bench.shapes import WORKLOADS, Workload, load_random, random_model, workload
from sharegen.engine.model.fp4.products import FP4
from sharegen.engine.model.fp8.blocks import widened
from sharegen.engine.model.fp8.products import EMULATE
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS
from sharegen.engine.model.load import load_model
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.errors import ModelError, UsageError
from sharegen.kernels.fp4_words import widen
from tests.engine.rank_processes import on_ranks
from tests.engine.tiny_models import make_tiny, tiny_config

CPU = torch.device("cpu")


def experts() -> Qwen3MoeConfig:
    """Weights as large beside each other as those of Qwen3-30B-A3B's config, and far fewer."""
    return Qwen3MoeConfig(
        vocab_size=512, hidden_size=64, moe_intermediate_size=32, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=32,
        num_experts_per_tok=8, initializer_range=0.2, tie_word_embeddings=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.turn(3)
def test_rows_under_one_prefix_share_the_experts_of_random_weights(tmp_path: Path) -> None:
    """As those of a trained model do, in the last layer, too; an even share are 16 rows of 64."""
    experts().save_pretrained(tmp_path)
    model = random_model(str(tmp_path), CPU, torch.float32)
    prefix = torch.randint(512, (1, 128)).expand(64, -1)
    tokens = torch.cat([prefix, torch.arange(64)[:, None]], dim=1)
    with torch.inference_mode():
        logits = model(tokens, output_router_logits=True).router_logits[-1].view(64, -1, 32)
    rows = torch.bincount(logits[:, -1].topk(8).indices.flatten(), minlength=32)
    assert rows.min() > 0 and rows.max() < 40


def lengths(ranks: Ranks, folder: str) -> torch.Tensor:
    model = load_random(folder, torch.float32, None, device=CPU, ranks=ranks).model
    return model.get_input_embeddings().weight.norm(dim=1)  # type: ignore[operator]


@pytest.mark.slow
def test_parts_of_a_model_of_experts_have_long_embeddings_too(tmp_path: Path) -> None:
    experts().save_pretrained(tmp_path)
    for found in on_ranks(2, lengths, str(tmp_path)):
        torch.testing.assert_close(found, torch.full_like(found, 30.0 * 8))


def test_workloads() -> None:
    assert workload("gsm8k") is WORKLOADS["gsm8k"]
    assert workload("0,1,2,3,1") == Workload(0, 1, 2, 3, 1)
    assert workload("5,0,1,1,1").prompts(8) == [workload("5,9,1,1,1").prompts(8)[0][:5]]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("gsm9k", "neither one of gsm8k, "),
        ("5,5,1,1", "nor five whole numbers"),
        ("5,5,1,1,1,1", "nor five whole numbers"),
        ("-1,5,1,1,1", "PREFIX is -1: it must be at least 0"),
        ("5,-1,1,1,1", "PROBLEM is -1: it must be at least 0"),
        ("5,5,0,1,1", "PROBLEMS is 0: it must be at least 1"),
        ("5,5,1,0,1", "SAMPLES is 0: it must be at least 1"),
        ("5,5,1,1,0", "OUTPUT is 0: it must be at least 1"),
        ("0,0,1,1,4", "PREFIX and PROBLEM are 0"),
    ],
)
def test_refuses_a_workload(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        workload(text)
    assert repr(text) in str(refused.value) and why in str(refused.value)


def test_random_weights_in_fp8_by_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EMULATE, "1")
    config = tiny_config("qwen3_moe")
    config.hidden_size, config.moe_intermediate_size, config.head_dim = 256, 128, 64
    config.save_pretrained(tmp_path)
    model = random_model(str(tmp_path), CPU, torch.float32, BLOCKS)
    layer = model.model.layers[1]
    assert layer.self_attn.q_proj.weight_scale.shape == (2, 2)
    experts = layer.mlp.experts
    assert experts.down_proj_scale.shape == (config.num_experts, 2, 1)
    numbers = widened(experts.gate_up_proj[1], experts.gate_up_proj_scale[1])
    assert numbers.std().item() == pytest.approx(config.initializer_range, rel=0.05)
    assert load_model(model).trial_forward(8, 8).isfinite().all()


def test_random_experts_in_mxfp4(tmp_path: Path) -> None:
    config = tiny_config("gpt_oss")
    config.hidden_size, config.intermediate_size = 96, 128
    config.save_pretrained(tmp_path)
    model = random_model(str(tmp_path), CPU, torch.bfloat16, FP4)
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.weight.dtype is torch.bfloat16
    experts = layer.mlp.experts
    numbers = widen(experts.gate_up_proj, experts.gate_up_proj_scale, 96, torch.float32)
    assert numbers.shape == (config.num_local_experts, 256, 96)
    assert numbers.std().item() == pytest.approx(config.initializer_range, rel=0.05)
    loaded = load_model(model)
    assert loaded.dtype is torch.bfloat16 and loaded.trial_forward(8, 8).isfinite().all()
    make_tiny("qwen3").save_pretrained(tmp_path / "dense")
    with pytest.raises(ModelError, match="has no experts that could be MXFP4: leave out"):
        random_model(str(tmp_path / "dense"), CPU, torch.bfloat16, FP4)
