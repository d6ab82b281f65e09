"""A tiny Llama as a GGUF file with a tokenizer and a chat template, whose numbers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from gguf import (
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFWriter,
    TokenType,
    dequantize,
    get_tensor_name_map,
    quantize,
)
from transformers import PreTrainedModel

from sharegen.engine.model.checkpoint.gguf_writer import pairs_side_by_side
from tests.engine.tiny_models import make_tiny

TEMPLATE = "{% for message in messages %}<u>{{ message['content'] }}{% endfor %}<a>"
_SPECIAL = ("<pad>", "<s>", "</s>", "<u>", "<a>")
_LETTERS = [*(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "ab"]


def write_tiny_gguf(
    file: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
    tokenizer: str = "gpt2",
    architecture: str = "llama",
    without: str = "",
    factors: torch.Tensor | None = None,
    theta: float = 10000.0,
    **metadata: str | int,
) -> PreTrainedModel:
    """Write the file, and return the model with the numbers that are in it.

    kind: matrices' whose rows are whole blocks of it; the others are F16. without: a tensor that is
    left out. factors: of its frequencies. metadata: more of it, "__" standing for a dot.
    """
    model = make_tiny("llama")
    config = model.config
    writer = GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for key, value in metadata.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint16
        add(key.replace("__", "."), value)  # type: ignore[arg-type]
    _add_tokenizer(writer, tokenizer, config)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        written = names.get_name(name, try_suffixes=(".weight",))
        assert written is not None
        values = _rotated(name, parameter.data, config)
        own = GGMLQuantizationType.F32
        if values.ndim > 1:
            own = kind if values.shape[1] % 32 == 0 else GGMLQuantizationType.F16
        blocks = quantize(values.numpy(), own)
        if written != without:
            writer.add_tensor(written, blocks, raw_dtype=own)
        stored = torch.from_numpy(dequantize(blocks, own).copy()).float()
        parameter.data = _rotated(name, stored, config, back=True)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _rotated(name: str, weight: torch.Tensor, config: Any, back: bool = False) -> torch.Tensor:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = name.split(".")[-2]
    if part not in heads:
        return weight
    if back:
        pairs = weight.view(heads[part], -1, 2, weight.shape[1])
        return pairs.swapaxes(1, 2).reshape(weight.shape)
    return torch.from_numpy(pairs_side_by_side(weight.numpy(), heads[part]))


def _add_tokenizer(writer: GGUFWriter, kind: str, config: Any) -> None:
    if kind == "none":
        return
    tokens = [*_SPECIAL, *_LETTERS]
    tokens += [f"<unused{i}>" for i in range(config.vocab_size - len(tokens))]
    types = [TokenType.CONTROL] * len(_SPECIAL)
    types += [TokenType.NORMAL] * (config.vocab_size - len(types))
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
