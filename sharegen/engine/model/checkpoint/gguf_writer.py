"""A Llama checkpoint as a GGUF file, which is what llama.cpp reads.

Layout and names are those of llama.cpp's convert_hf_to_gguf.py. The file has no tokenizer: it is
for benchmarks, which feed token ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sharegen.engine.model.checkpoint.source import load_config, locate
from sharegen.engine.model.checkpoint.weights import load_weights
from sharegen.errors import SharegenError, UsageError

ARCHITECTURE = "llama"


def write_gguf(model: Path, file: Path, dtype: torch.dtype) -> None:
    """Write the checkpoint in the folder `model` to `file`, its matrices in `dtype`.

    dtype: float32 or bfloat16. Vectors are float32, as llama.cpp has them.

    Raises UsageError for a checkpoint that cannot be written, ModelError for one that cannot be
    read, and SharegenError where there is no room for the file.
    """
    source = locate(model)
    config = load_config(source)
    reason = _refusal(config)
    if reason is not None:
        raise UsageError(
            f"--model {model}: {reason}, which is not written as GGUF here: make the file with "
            "llama.cpp's convert_hf_to_gguf.py and give it"
        )
    weights = load_weights(source, config, dtype, torch.device("cpu")).state_dict()
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    try:
        _write(file, config, weights)
    except OSError as error:
        raise SharegenError(
            f"cannot write {file}: {error.strerror or error}: set TMPDIR to a folder with more room"
        ) from error


def _refusal(config: Any) -> str | None:
    """What the checkpoint has that is not written, or None."""
    if config.model_type != ARCHITECTURE:
        return f"its architecture is {config.model_type}"
    if getattr(config, "quantization_config", None):
        return "its weights are quantised"
    if config.rope_parameters["rope_type"] != "default":
        return f"its positions are scaled ({config.rope_parameters['rope_type']})"
    if config.attention_bias or config.mlp_bias:
        return "it has biases"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    return None


def _write(file: Path, config: Any, weights: dict[str, torch.Tensor]) -> None:
    from gguf import (
        MODEL_ARCH,
        GGMLQuantizationType,
        GGUFWriter,
        LlamaFileType,
        get_tensor_name_map,
    )
    from gguf.quants import quantize

    is_bfloat16 = weights["model.embed_tokens.weight"].dtype == torch.bfloat16
    writer = GGUFWriter(file, ARCHITECTURE)
    writer.add_file_type(LlamaFileType.MOSTLY_BF16 if is_bfloat16 else LlamaFileType.ALL_F32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in weights.items():
        values = weight.float().numpy()
        part = name.split(".")[-2]
        if part in heads:
            values = pairs_side_by_side(values, heads[part])
        kind = (
            GGMLQuantizationType.BF16
            if is_bfloat16 and values.ndim > 1
            else GGMLQuantizationType.F32
        )
        written = names.get_name(name, try_suffixes=(".weight",))
        assert written is not None, name
        writer.add_tensor(written, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pairs_side_by_side(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key projection in the order that llama.cpp rotates them in.

    weight: (heads * size, hidden). transformers rotates row i of a head with row i + size / 2,
    llama.cpp row 2i with row 2i + 1.
    """
    halves = weight.reshape(heads, 2, -1, weight.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
