"""Llama checkpoints as GGUF: gguf's reader finds each weight where llama.cpp looks for it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from sharegen.engine.model.checkpoint.gguf_writer import write_gguf
from sharegen.errors import ModelError, SharegenError, UsageError
from tests.tiny import save_tiny_model

needs_gguf = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs gguf")


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def rotated(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp's order of rows: those that transformers rotates together lie side by side."""
    size = weight.shape[0] // heads
    rows = [
        head * size + row
        for head in range(heads)
        for first in range(size // 2)
        for row in (first, first + size // 2)
    ]
    return weight[rows]


@needs_gguf
@pytest.mark.parametrize("tied", [False, True])
def test_the_file_read_back(tmp_path: Path, tied: bool) -> None:
    from gguf import GGUFReader

    folder = save_tiny_model(tmp_path / "model")
    if tied:
        model = load(folder)
        model.config.tie_word_embeddings = True
        model.tie_weights()
        model.save_pretrained(folder)
    write_gguf(folder, tmp_path / "m.gguf", torch.float32)
    model = load(folder)
    config, weights = model.config, model.state_dict()
    reader = GGUFReader(tmp_path / "m.gguf")
    shapes = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "rope.dimension_count": config.head_dim,
        "vocab_size": config.vocab_size,
    }
    for name, value in shapes.items():
        assert reader.fields[f"llama.{name}"].contents() == value, name
    epsilon = reader.fields["llama.attention.layer_norm_rms_epsilon"].contents()
    assert epsilon == pytest.approx(config.rms_norm_eps)
    assert reader.fields["llama.rope.freq_base"].contents() == config.rope_parameters["rope_theta"]
    assert reader.fields["general.architecture"].contents() == "llama"

    expected = {
        "token_embd": weights["model.embed_tokens.weight"],
        "output_norm": weights["model.norm.weight"],
    }
    if not tied:
        expected["output"] = weights["lm_head.weight"]
    parts = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for layer in range(config.num_hidden_layers):
        for name, part in parts.items():
            weight = weights[f"model.layers.{layer}.{part}.weight"]
            expected[f"blk.{layer}.{name}"] = (
                rotated(weight, heads[name]) if name in heads else weight
            )
    found = {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
    assert found.keys() == {f"{name}.weight" for name in expected}
    for name, weight in expected.items():
        assert torch.equal(found[f"{name}.weight"], weight), name


@needs_gguf
def test_a_bfloat16_file_gives_transformers_the_same_model(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    write_gguf(folder, tmp_path / "m.gguf", torch.bfloat16)
    narrow = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float()
    read = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32, local_files_only=True
    )
    ids = torch.arange(20)[None]
    assert torch.equal(read(ids).logits, narrow(ids).logits)


@needs_gguf
def test_no_room_for_the_file(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    full = Path("/dev/full")
    if full.exists():
        with pytest.raises(SharegenError, match=r"/dev/full: (?!None).+: set TMPDIR to a folder"):
            write_gguf(folder, full, torch.float32)
    with pytest.raises(SharegenError, match="No such file or directory: set TMPDIR"):
        write_gguf(folder, tmp_path / "nowhere" / "m.gguf", torch.float32)


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"model_type": "mistral"}, "its architecture is mistral"),
        ({"quantization_config": {"quant_method": "fp8"}}, "its weights are quantised"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            r"its positions are scaled \(linear\)",
        ),
        ({"attention_bias": True}, "it has biases"),
        ({"hidden_act": "gelu"}, "its activation is gelu"),
    ],
)
def test_what_is_not_written(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    config = {
        "model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 64,
        "num_hidden_layers": 2, "intermediate_size": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UsageError, match=f"{reason}, which is not written as GGUF here: make"):
        write_gguf(tmp_path, tmp_path / "m.gguf", torch.float32)


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json"):
        write_gguf(tmp_path, tmp_path / "m.gguf", torch.float32)
