"""Tiny random models of every architecture that sharegen is exact for: one line each.

A line is: our name, the model type (a key of transformers' CONFIG_MAPPING), and what differs from
the common small config. Windows are smaller than the sequences that the tests decode, and weights
are drawn wide so that logits are far from ties.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from sharegen.engine.model.states.mixers import HANDS_STATES_OVER

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
_GROUPS: dict[str, Any] = {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
# The first layer sees a window of six tokens, the second everything.
_WINDOW: dict[str, Any] = {
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
}
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

_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 64,
}
_DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}

# fmt: off
TABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "afmoe": ("afmoe", _EXPERTS | _WINDOW | {"num_dense_layers": 1}),
    "apertus": ("apertus", {"rope_parameters": _LLAMA3_ROPE}),
    "arcee": ("arcee", {}),
    "aria": ("aria_text", {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}),
    "biogpt": ("biogpt", {}),
    "bitnet": ("bitnet", {}),
    "cohere": ("cohere", {"logit_scale": 4.0, "use_qk_norm": True}),
    "cohere2": ("cohere2", _WINDOW | {"logit_scale": 4.0}),
    "cohere2_moe": ("cohere2_moe", _EXPERTS | _WINDOW | {"logit_scale": 4.0}),
    "cwm": ("cwm", _WINDOW | {"rope_parameters": _LLAMA3_ROPE}),
    "dbrx": ("dbrx", {
        "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256,
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2,
                       "hidden_size": 32}}),
    "deepseek_v2": ("deepseek_v2", _EXPERTS | _MLA | _GROUPS),
    "deepseek_v3": ("deepseek_v3", _EXPERTS | _MLA | _GROUPS),
    "dots1": ("dots1", _EXPERTS | _GROUPS | _WINDOW | {"n_shared_experts": 1}),
    "ernie4_5": ("ernie4_5", {}),
    "ernie4_5_moe": ("ernie4_5_moe", _EXPERTS | {"moe_num_experts": 4, "moe_k": 2}),
    "exaone4": ("exaone4", _WINDOW),
    "exaone_moe": ("exaone_moe", _EXPERTS | _WINDOW | {"n_group": 1, "topk_group": 1}),
    "flex_olmo": ("flex_olmo", _EXPERTS),
    "flint": ("flint", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", _WINDOW | {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 2}),
    "gemma3": ("gemma3_text", _WINDOW),
    "gemma3-image-text": ("gemma3", {
        "text_config": _COMMON | _WINDOW, "image_token_index": 120, "boi_token_index": 121,
        "eoi_token_index": 122, "mm_tokens_per_image": 4,
        "vision_config": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                          "num_attention_heads": 2, "image_size": 16, "patch_size": 4}}),
    "gemma3n": ("gemma3n_text", {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "sliding_window": 6,
        "layer_types": _WINDOW["layer_types"] * 2, "vocab_size_per_layer_input": 128,
        "hidden_size_per_layer_input": 8, "laurel_rank": 4}),
    "gemma4": ("gemma4_text", _WINDOW | {
        "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 8,
        "global_head_dim": 16, "num_global_key_value_heads": 1}),
    "glm": ("glm", {}),
    "glm4": ("glm4", {}),
    "glm4_moe": ("glm4_moe", _EXPERTS | _GROUPS),
    "glm4_moe_lite": ("glm4_moe_lite", _EXPERTS | _MLA | _GROUPS),
    "gpt2": ("gpt2", {}),
    "gpt_bigcode": ("gpt_bigcode", {}),
    "gpt_neox": ("gpt_neox", {}),
    "gpt_oss": ("gpt_oss", _EXPERTS | _WINDOW | {"rope_parameters": _YARN_ROPE}),
    "granite": ("granite", {
        "attention_multiplier": 0.4, "logits_scaling": 0.5, "residual_multiplier": 0.9}),
    "granite_swa": ("granite_swa", {"sliding_window": 6}),
    "granitemoe": ("granitemoe", _EXPERTS),
    "granitemoe_swa": ("granitemoe_swa", _EXPERTS | {"sliding_window": 6}),
    "granitemoeshared": ("granitemoeshared", _EXPERTS | {"shared_intermediate_size": 16}),
    "helium": ("helium", {}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", _EXPERTS | {"moe_topk": 2}),
    "hy_v3": ("hy_v3", _EXPERTS),
    "hyperclovax": ("hyperclovax", {}),
    "iquestcoder": ("iquestcoder", {}),
    "jais2": ("jais2", {}),
    "jetmoe": ("jetmoe", _EXPERTS | {"kv_channels": 8}),
    "kolibri1": ("kolibri1", _EXPERTS | _WINDOW),
    "laguna": ("laguna", _EXPERTS | _WINDOW),
    "llama": ("llama", {}),
    "llama-dynamic-rope": ("llama", {"rope_parameters": _DYNAMIC_ROPE}),
    "llama-llama3-rope": ("llama", {"rope_parameters": _LLAMA3_ROPE}),
    "llama4": ("llama4_text", _EXPERTS | {
        "num_hidden_layers": 4, "attention_chunk_size": 10, "attn_temperature_tuning": True,
        "floor_scale": 8}),
    "longcat_flash": ("longcat_flash", _EXPERTS | _MLA | {
        "num_layers": 1, "ffn_hidden_size": 48, "expert_ffn_hidden_size": 16, "moe_topk": 2,
        "zero_expert_num": 1}),
    "mellum": ("mellum", _EXPERTS | _WINDOW),
    "mimo_v2_flash": ("mimo_v2_flash", _EXPERTS | _WINDOW | {"v_head_dim": 6}),
    "minicpm3": ("minicpm3", _MLA | {"dim_model_base": 16}),
    "minimax_m2": ("minimax_m2", _EXPERTS),
    "ministral": ("ministral", {"sliding_window": 6}),
    "ministral3": ("ministral3", {"rope_parameters": _YARN_ROPE | {
        "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "mixtral": ("mixtral", _EXPERTS | {"sliding_window": 8}),
    "modernbert-decoder": ("modernbert-decoder", {
        "local_attention": 12, "global_attn_every_n_layers": 2, "cls_token_id": 1,
        "sep_token_id": 2}),
    "nanochat": ("nanochat", {}),
    "nemotron": ("nemotron", {}),
    "olmo": ("olmo", {"clip_qkv": 4.0}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", _WINDOW),
    "olmoe": ("olmoe", _EXPERTS),
    "opt": ("opt", {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.25}),
    "persimmon": ("persimmon", {}),
    "phi": ("phi", {"qk_layernorm": True}),
    "phi3": ("phi3", {"sliding_window": 9}),
    "phi3-longrope": ("phi3", {
        "rope_parameters": _LONGROPE, "original_max_position_embeddings": 64}),
    "phimoe": ("phimoe", _EXPERTS | {"sliding_window": 9}),
    "qwen2": ("qwen2", _WINDOW | {"use_sliding_window": True}),
    "qwen2-yarn-rope": ("qwen2", {"rope_parameters": _YARN_ROPE}),
    "qwen2_moe": ("qwen2_moe", _EXPERTS | _WINDOW | {
        "shared_expert_intermediate_size": 16, "use_sliding_window": True}),
    "qwen3": ("qwen3", {}),
    "qwen3_moe": ("qwen3_moe", _EXPERTS),
    "seed_oss": ("seed_oss", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0]}),
    "solar_open": ("solar_open", _EXPERTS | _GROUPS),
    "stablelm": ("stablelm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "starcoder2": ("starcoder2", {"sliding_window": 6}),
    "vaultgemma": ("vaultgemma", _WINDOW),
    "youtu": ("youtu", _MLA),
}
# fmt: on

_HEADS: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}
_LINEAR_FIRST: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
_DELTA: dict[str, Any] = _LINEAR_FIRST | {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 2,
}
# One block of attention stands in several layers.
_ONE_IN_TURNS: dict[str, Any] = {
    "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "head_dim": None,
    "n_mamba_heads": 4,
}
_NO_LEAST = 1e-12  # what zamba2 and nemotron_h hold time steps above in prompts, not in decoding
_MAMBA2: dict[str, Any] = {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2}

# fmt: off
HYBRIDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bailing_hybrid": ("bailing_hybrid", _EXPERTS | _MLA | _LINEAR_FIRST),
    "bamba": ("bamba", _MAMBA | {"attn_layer_indices": [1]}),
    "falcon_h1": ("falcon_h1", _MAMBA | {"mamba_d_ssm": 64}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8}),
    "granitemoehybrid": ("granitemoehybrid", _EXPERTS | _MAMBA | {
        "layer_types": ["mamba", "attention"], "shared_intermediate_size": 16}),
    "jamba": ("jamba", _EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1}),
    "kimi_linear": ("kimi_linear", _EXPERTS | _MLA | _LINEAR_FIRST | {
        "linear_head_dim": 8, "linear_num_heads": 4}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": ("lfm2_moe", _EXPERTS | {
        "layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "lfm3": ("lfm3", {"layer_types": ["conv", "full_attention"], "sliding_window": 6}),
    "mamba": ("mamba", {}),
    "mamba2": ("mamba2", _MAMBA2 | {"expand": 2}),
    "nemotron_h": ("nemotron_h", _EXPERTS | {
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "moe"],
        "num_hidden_layers": 4, "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8,
        "n_groups": 2, "moe_shared_expert_intermediate_size": 16,
        "time_step_min": _NO_LEAST}),
    "olmo_hybrid": ("olmo_hybrid", _DELTA),
    "qwen3_5": ("qwen3_5_text", _DELTA),
    "qwen3_5_moe": ("qwen3_5_moe_text", _EXPERTS | _DELTA),
    "qwen3_next": ("qwen3_next", _EXPERTS | _DELTA),
    "zamba": ("zamba", _ONE_IN_TURNS | {"attention_head_dim": 16, "mamba_d_state": 8}),
    "zamba2": ("zamba2", _ONE_IN_TURNS | {
        "mamba_d_state": 8, "mamba_ngroups": 2, "use_mem_rope": True, "time_step_min": _NO_LEAST,
        "use_shared_attention_adapter": True, "adapter_rank": 4}),
    "zaya": ("zaya", _EXPERTS | {
        "num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 6,
        "router_hidden_size": 16}),
}
# fmt: on
TABLE |= HYBRIDS

TINY = {
    name: line
    for name, line in TABLE.items()
    if line[0] in CONFIG_MAPPING and (HANDS_STATES_OVER or name not in HYBRIDS)
}
"""The lines whose architecture the installed transformers has, and hands the states over of."""

CUT_IN_FOUR = (
    "cohere2", "deepseek_v3", "gemma2", "gemma3", "gpt_oss", "granite", "llama", "mistral",
    "mixtral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
"""Lines whose parts the tests run on four ranks; on two they run those of all that are cut."""


_HYBRID_WINDOWS: dict[str, Any] = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 2,
    "swa_head_dim": 8,
    "sliding_window_size": 6,
}
_NO_INTERFACE = "it never calls transformers' attention interface"
_OWN_CACHE = "it has linear_attention layers, whose states do not go through transformers' cache"

# fmt: off
_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert": ("bert", {"is_decoder": False},
             "it uses a mask that is neither causal, a window nor chunks"),
    "bloom": ("bloom", {"n_layer": 2, "n_head": 4}, _NO_INTERFACE),
    "codegen": ("codegen", _HEADS, _NO_INTERFACE),
    "diffllama": ("diffllama", {}, "it calls the attention of a layer more than once"),
    "doge": ("doge", {}, "it builds its own attention mask"),
    "falcon": ("falcon", {"multi_query": False, "head_dim": None}, _NO_INTERFACE),
    "gpt_neo": ("gpt_neo", {"num_layers": 2, "num_heads": 4,
                            "attention_types": [[["global", "local"], 1]]}, _NO_INTERFACE),
    "gptj": ("gptj", _HEADS, _NO_INTERFACE),
    "hrm_text": ("hrm_text", {}, "it calls the attention of a layer more than once"),
    "inkling": ("inkling_text", _EXPERTS | _HYBRID_WINDOWS,
                "it passes position_bias to its attention"),
    "inkling2": ("inkling2_text", _EXPERTS | _HYBRID_WINDOWS,
                 "it passes position_bias, sinks to its attention"),
    "mbart": ("mbart", {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4,
                        "decoder_ffn_dim": 48}, "it is an encoder-decoder model"),
    "minimax": ("minimax", _EXPERTS | {"layer_types": ["linear_attention", "full_attention"]},
                _OWN_CACHE),
    "mpt": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2}, _NO_INTERFACE),
    "qwen4_exp": ("qwen4_exp_text", _EXPERTS | _DELTA | {
        "layer_types": ["linear_attention", "indexed_attention"], "hc_lowrank": 8,
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 4},
        "it has indexed_attention layers, in which every query chooses its keys"),
    "recurrent_gemma": ("recurrent_gemma", {
        "lru_width": 32, "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
        _OWN_CACHE),
    "rwkv": ("rwkv", {"attention_hidden_size": 32}, _NO_INTERFACE),
    "t5": ("t5", {"d_model": 32}, "it is an encoder-decoder model"),
    "xglm": ("xglm", {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4},
             _NO_INTERFACE),
    "xlstm": ("xlstm", {}, _NO_INTERFACE),
}
# fmt: on

_OTHERWISE_BEFORE = {"inkling", "qwen4_exp"}
"""Their code in transformers was another before it handed states over (5.23)."""

REFUSED = {
    name: line
    for name, line in _REFUSED.items()
    if line[0] in CONFIG_MAPPING
    and (HANDS_STATES_OVER or (line[2] != _OWN_CACHE and name not in _OTHERWISE_BEFORE))
}
"""Architectures that the engine refuses, and the reason that it must name."""


def tiny_config(name: str) -> PreTrainedConfig:
    """The config of one line of either table; a test of one that is not there is skipped."""
    if (name in TABLE and name not in TINY) or (name in _REFUSED and name not in REFUSED):
        pytest.skip(f"transformers {transformers.__version__} has no {name} that takes part")
    model_type, changes = TINY[name] if name in TINY else REFUSED[name][:2]
    values = deepcopy(_COMMON | changes)  # configs complete their dicts in place
    return CONFIG_MAPPING[model_type](**{k: v for k, v in values.items() if v is not None})


def make_tiny(name: str, seed: int = 0) -> PreTrainedModel:
    """A random model of one line of the table: float32, evaluation mode, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(name), attn_implementation="eager")
    for key, parameter in model.named_parameters():
        if key.endswith("qk_norm.temp"):  # zaya's factors of its keys, which start at zero
            torch.nn.init.ones_(parameter)
    model.generation_config.eos_token_id = model.config.eos_token_id
    return model.float().eval()
