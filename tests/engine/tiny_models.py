"""Tiny random models of every architecture that sharegen is exact for: one line each.

A line is: our name, the model type (a key of transformers' CONFIG_MAPPING), and what differs from
the common small config. Windows are smaller than the sequences that the tests decode, and weights
are drawn wide so that logits are far from ties.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

_COMMON: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
_ALTERNATING = ["sliding_attention", "full_attention"]
_MLA: dict[str, Any] = {
    "head_dim": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-rope-llama3": ("llama", {"rope_parameters": _LLAMA3_ROPE}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen2-rope-yarn": ("qwen2", {"rope_parameters": _YARN_ROPE}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"sliding_window": 6, "layer_types": _ALTERNATING}),
    "gemma3": ("gemma3_text", {"sliding_window": 6, "layer_types": _ALTERNATING}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {"sliding_window": 9}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt2": ("gpt2", {}),
}


def tiny_config(name: str) -> PreTrainedConfig:
    """The config of one line of the table."""
    model_type, changes = TINY[name]
    return CONFIG_MAPPING[model_type](**(_COMMON | changes))


def make_tiny(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model of one line of the table: float32, evaluation mode, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(name), attn_implementation="eager")
    model.generation_config.eos_token_id = model.config.eos_token_id
    return model.float().eval()
