"""Load a Hugging Face model and prepare it for the engine.

The modelling code stays Hugging Face's own: sharegen plugs its attention in through transformers'
`AttentionInterface` and registers no mask function, so that no mask is ever built. What the step's
attention needs travels in one context object (attention.py), since some models drop keyword
arguments that they don't know.
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from sharegen.engine import attention, checkpoint
from sharegen.engine.checkpoint import load_tokenizer
from sharegen.engine.probe import IMPLEMENTATION as PROBE
from sharegen.engine.probe import LayerSpec, probe
from sharegen.errors import ModelError

__all__ = ["LayerSpec", "LoadedModel", "load_model", "load_tokenizer", "sharegen_attention"]

IMPLEMENTATION = "sharegen"
_LAYER_ATTRIBUTE = "sharegen_layer"


def sharegen_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query: [1, Hq, T, Dk], key, value: [1, Hkv, T, *] -> [1, T, Hq, Dv].

    The per-layer constants (scaling, window, softcap) were read by the probe; only the sinks are
    tensors and are read from the call.
    """
    out = attention.current().attend(
        getattr(module, _LAYER_ATTRIBUTE),
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        sinks=s_aux,
    )
    return out.unsqueeze(0).contiguous(), None  # models view it


AttentionInterface.register(IMPLEMENTATION, sharegen_attention)


@dataclass(eq=False)
class LoadedModel:
    """A model that is ready for the engine.

    model: the Hugging Face module, its attention switched to sharegen's until `release()`.
    layers: one LayerSpec per attention call, in the order of the calls.
    context_length: the most positions that the engine may use; `check_length` says why.
    vocab_size: rows of the output head. fingerprint: stable hash of config and weights' identity.
    """

    model: PreTrainedModel
    config: Any
    layers: list[LayerSpec]
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    fingerprint: str
    _limits: list[tuple[int, str]] = field(repr=False)
    _implementations: list[tuple[Any, str]] = field(repr=False)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one token takes in all layers."""
        numbers = sum(
            layer.num_kv_heads * (layer.key_size + layer.value_size) for layer in self.layers
        )
        return numbers * self.dtype.itemsize

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, logit_rows: torch.Tensor
    ) -> torch.Tensor:
        """input_ids, position_ids: [T], logit_rows: [R] rows of T -> logits [R, vocab_size].

        Attention goes to the context made current with `attention.active`.
        """
        inputs = {"input_ids": input_ids[None], "position_ids": position_ids[None]}
        if self._takes_rows:
            return self.model(**inputs, use_cache=False, logits_to_keep=logit_rows).logits[0]
        return self.model(**inputs, use_cache=False).logits[0, logit_rows]

    def __post_init__(self) -> None:
        self._takes_rows = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    @property
    def context_length(self) -> int:
        """The most positions that prompt and output may take together."""
        return min(limit for limit, _ in self._limits)

    def check_length(self, length: int) -> None:
        """Raise ModelError, naming the reason, if sequences of `length` tokens are not exact."""
        for limit, reason in self._limits:
            if length > limit:
                raise ModelError(f"{length} tokens are too many: {reason}")

    def release(self) -> None:
        """Give the Hugging Face module back its own attention."""
        for config, implementation in self._implementations:
            config._attn_implementation_internal = implementation
        for module in self.model.modules():
            if hasattr(module, _LAYER_ATTRIBUTE):
                delattr(module, _LAYER_ATTRIBUTE)


def load_model(
    model: str | os.PathLike[str] | PreTrainedModel,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    adapter: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    weights: bool = True,
) -> LoadedModel:
    """Load and probe a model.

    model: a local folder, a hub id, or a loaded PreTrainedModel, which is used as it is.
    device: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1".
    dtype: "auto" (float32 on a CPU, the checkpoint's on CUDA), "float32", "bfloat16", "float16".
    adapter: a LoRA adapter (folder or hub id), merged into the weights.
    weights: False builds the model on torch's meta device from its config alone: enough to plan.

    Raises ModelError, in one line, for a model that is not there, does not load or that the engine
    could not run exactly; UsageError for a device or dtype that does not exist.
    """
    if isinstance(model, PreTrainedModel):
        identity = checkpoint.fingerprint_of_module(model)
        return _prepare(model.eval(), type(model).__name__, identity)
    target = checkpoint.resolve_device(device)
    source = checkpoint.locate(model, trust_remote_code)
    config = checkpoint.load_config(source)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"model {source.name} is not supported: it is an encoder-decoder model")
    precision = checkpoint.resolve_dtype(dtype, target, config)
    identity = checkpoint.fingerprint(source, config)
    if weights:
        module = checkpoint.load_weights(source, config, precision, target)
    else:
        module = checkpoint.build_on_meta(source, config, precision)
    if adapter is not None:
        identity = f"{identity}+{checkpoint.fingerprint(checkpoint.locate(adapter), None)}"
        module = checkpoint.merge_adapter(module, adapter) if weights else module
    return _prepare(module, source.name, identity)


def _prepare(module: PreTrainedModel, name: str, fingerprint: str) -> LoadedModel:
    before = [(config, config._attn_implementation_internal) for config in _configs(module)]
    try:
        module.set_attn_implementation(PROBE)
        recording, vocab_size = probe(module, name)
        module.set_attn_implementation(IMPLEMENTATION)
    except ModelError:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        raise
    for index, attention_module in enumerate(recording.modules):
        setattr(attention_module, _LAYER_ATTRIBUTE, index)
    embedding = module.get_input_embeddings().weight
    return LoadedModel(
        model=module,
        config=module.config,
        layers=recording.layers,
        eos_token_ids=_eos_token_ids(module),
        vocab_size=vocab_size,
        dtype=module.dtype,
        device=embedding.device,
        fingerprint=fingerprint,
        _limits=_length_limits(module, recording.layers),
        _implementations=before,
    )


def _configs(module: PreTrainedModel) -> list[Any]:
    """Every config whose attention implementation a switch may change, each once."""
    found: dict[int, Any] = {}
    stack = [part.config for part in module.modules() if isinstance(part, PreTrainedModel)]
    while stack:
        config = stack.pop()
        if config is not None and id(config) not in found:
            found[id(config)] = config
            stack.extend(getattr(config, key, None) for key in config.sub_configs)
    return list(found.values())


def _eos_token_ids(module: PreTrainedModel) -> tuple[int, ...]:
    """From the generation config, else the config; a number or a list of them."""
    for config in (module.generation_config, module.config, module.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)
    return ()


def _length_limits(module: PreTrainedModel, layers: list[LayerSpec]) -> list[tuple[int, str]]:
    """(most tokens, why) of everything that bounds the length of a sequence."""
    config = module.config.get_text_config()
    limits = []
    for key in ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"):
        length = getattr(config, key, None)
        if isinstance(length, int) and length > 0:
            limits.append((length, f"the model's context length is {length}"))
            break
    return limits or [(2**20, "the model names no context length")]
