"""The architectures whose exactness the tests prove, by transformers' model types.

A model of another architecture is loaded all the same when the probe finds nothing against it,
and then checks itself against its own eager attention (self_check.py).
"""

from __future__ import annotations

# fmt: off
TESTED = frozenset({
    "afmoe", "apertus", "arcee", "aria_text", "biogpt", "bitnet", "cohere", "cohere2",
    "cohere2_moe", "cwm", "dbrx", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5",
    "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "flint", "gemma", "gemma2",
    "gemma3", "gemma3_text", "gemma3n_text", "gemma4_text", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "granite", "granite_swa",
    "granitemoe", "granitemoe_swa", "granitemoeshared", "helium", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "hy_v3", "hyperclovax", "iquestcoder", "jais2", "jetmoe", "kolibri1",
    "laguna", "llama", "llama4_text", "longcat_flash", "mellum", "mimo_v2_flash",
    "minicpm3", "minimax_m2", "ministral", "ministral3", "mistral", "mixtral",
    "modernbert-decoder", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt",
    "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
    "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2", "vaultgemma", "youtu",
})
# fmt: on
