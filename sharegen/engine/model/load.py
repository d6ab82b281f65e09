"""Load a Hugging Face model and prepare it for the engine.

The modelling code stays Hugging Face's own: sharegen plugs its attention in through transformers'
`AttentionInterface` and registers no mask function, so that no mask is ever built. What the step's
attention needs travels in one context object (attention.py), since some models drop keyword
arguments that they don't know.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from sharegen.engine.execute import attention
from sharegen.engine.model import checkpoint
from sharegen.engine.model.architectures import TESTED
from sharegen.engine.model.checkpoint import load_tokenizer, quiet
from sharegen.engine.model.fingerprint import fingerprint_of_module, fingerprint_of_source
from sharegen.engine.model.probe import IMPLEMENTATION as PROBE
from sharegen.engine.model.probe import LayerSpec, embedding_weight, probe, refusal
from sharegen.engine.model.rope import hold_frequencies
from sharegen.engine.model.self_check import self_check
from sharegen.errors import ModelError

__all__ = ["LayerSpec", "LoadedModel", "load_model", "load_tokenizer", "sharegen_attention"]

IMPLEMENTATION = "sharegen"
_LAYER_ATTRIBUTE = "sharegen_layer"
_NO_LIMIT = 2**20  # tokens, where neither config nor frequencies name a limit


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
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if torch.compiler.is_compiling():
        out = attention.attend_in_order(q, k, v, s_aux)
    else:
        out = attention.current().attend(getattr(module, _LAYER_ATTRIBUTE), q, k, v, sinks=s_aux)
    return out.unsqueeze(0).contiguous(), None  # models view it


AttentionInterface.register(IMPLEMENTATION, sharegen_attention)


def on(device: torch.device) -> torch.cuda.device:
    """A GPU is the current one inside: Triton, streams and graphs go by that, not by tensors."""
    return torch.cuda.device(device if device.type == "cuda" else -1)


class _RowPositions:
    """Stands in for a KV cache in models that number the rows of a batch by themselves.

    Such a model adds the row's number to the length of the cache; this one's length is, row by
    row, what makes the sum the row's true position.
    """

    def __init__(self, position_ids: torch.Tensor) -> None:
        rows = torch.arange(len(position_ids), device=position_ids.device)
        self._length = position_ids - rows

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
        return self._length

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *args: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return key, value


@dataclass(eq=False)
class LoadedModel:
    """A model that is ready for the engine.

    model: the Hugging Face module, its attention switched to sharegen's until `release()`.
    layers: one LayerSpec per attention call, in the order of the calls.
    vocab_size: rows of the output head.
    fingerprint: a stable hash of the config and the weights' identity.
    """

    model: PreTrainedModel
    config: Any
    layers: list[LayerSpec]
    eos_token_ids: tuple[int, ...]
    vocab_size: int
    dtype: torch.dtype
    device: torch.device
    fingerprint: str
    _limits: list[tuple[int, str]] = field(repr=False)  # (tokens, why)
    _undo: ExitStack = field(repr=False)

    def __post_init__(self) -> None:
        self._takes_rows = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        # Llama 4 scales the queries of layers without RoPE by a position that it counts itself.
        text_config = self.config.get_text_config()
        self._counts_rows = bool(getattr(text_config, "attn_temperature_tuning", False))

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one token takes in all layers."""
        numbers = sum(
            layer.num_kv_heads * (layer.key_size + layer.value_size) for layer in self.layers
        )
        return numbers * self.dtype.itemsize

    @property
    def context_length(self) -> int:
        """The most tokens that prompt and output may have together."""
        return min(limit for limit, _ in self._limits)

    @property
    def declared_length(self) -> int:
        """The context length that the config names, which RoPE frequencies may not allow."""
        return self._limits[-1][0]

    def check_length(self, length: int) -> None:
        """Raise ModelError, naming the reason, if sequences of `length` tokens are too long."""
        limit, reason = min(self._limits, key=lambda pair: pair[0])
        if length > limit:
            raise ModelError(f"{length} tokens are too many for this model: {reason}")

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, logit_rows: torch.Tensor
    ) -> torch.Tensor:
        """input_ids, position_ids: [T], logit_rows: [R] rows of T -> logits [R, vocab_size].

        Attention goes to the context made current with `attention.active`.
        """
        inputs: dict[str, Any] = {
            "input_ids": input_ids[None],
            "position_ids": position_ids[None],
            "use_cache": False,
        }
        if self._counts_rows:
            inputs["past_key_values"] = _RowPositions(position_ids)
        if self._takes_rows:
            return self.model(**inputs, logits_to_keep=logit_rows).logits[0]
        return self.model(**inputs).logits[0, logit_rows]

    def on_release(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Have something that was done to the module undone by `release`."""
        self._undo.callback(undo, *arguments)

    def release(self) -> None:
        """Give the Hugging Face module back its own attention, and all else that was changed."""
        self._undo.close()


def load_model(
    model: str | os.PathLike[str] | PreTrainedModel,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    adapter: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    weights: bool = True,
) -> LoadedModel:
    """Load and probe a model.

    model: a local folder, a hub id, or a loaded PreTrainedModel, which is used as it is: where it
        lies, in its dtype, and without an adapter.
    device: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1".
    dtype: "auto" (float32 on a CPU, the checkpoint's on CUDA), "float32", "bfloat16", "float16".
    adapter: a LoRA adapter (folder or hub id), merged into the weights.
    weights: False builds the model on torch's meta device from its config alone: enough to plan.

    Raises ModelError, in one line, for a model that is not there, does not load or that the engine
    could not run exactly; UsageError for a device or dtype that does not exist.
    """
    if isinstance(model, PreTrainedModel):
        if model.config._attn_implementation == IMPLEMENTATION:
            raise ModelError("the model is in use already: release the one that has it first")
        name = type(model).__name__
        _refuse_encoder_decoder(name, model.config)
        return _prepare(model.eval(), name, fingerprint_of_module(model))
    target = checkpoint.resolve_device(device)
    source = checkpoint.locate(model, trust_remote_code)
    config = checkpoint.load_config(source)
    _refuse_encoder_decoder(source.name, config)
    precision = checkpoint.resolve_dtype(dtype, target, config)
    fingerprint = fingerprint_of_source(source, config)
    if weights:
        module = checkpoint.load_weights(source, config, precision, target)
    else:
        module = checkpoint.build_on_meta(source, config, precision)
    if adapter is not None:
        lora = checkpoint.locate_adapter(adapter)
        fingerprint = f"{fingerprint}+{fingerprint_of_source(lora, None)}"
        if weights:
            module = checkpoint.merge_adapter(module, lora)
    return _prepare(module, source.name, fingerprint)


def _refuse_encoder_decoder(name: str, config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise refusal(name, "it is an encoder-decoder model")


def _prepare(module: PreTrainedModel, name: str, fingerprint: str) -> LoadedModel:
    with ExitStack() as undo, quiet():
        for config in _configs(module):
            undo.callback(
                setattr, config, "_attn_implementation_internal", config._attn_implementation
            )
        held = hold_frequencies(module)
        for frequencies in held:
            undo.callback(frequencies.release)
        module.set_attn_implementation(PROBE)
        recording, vocab_size = probe(module, name)
        module.set_attn_implementation(IMPLEMENTATION)
        for index, attention_module in enumerate(recording.modules):
            setattr(attention_module, _LAYER_ATTRIBUTE, index)
            undo.callback(delattr, attention_module, _LAYER_ATTRIBUTE)
        limits = [(frequencies.length, frequencies.reason) for frequencies in held]
        loaded = LoadedModel(
            model=module,
            config=module.config,
            layers=recording.layers,
            eos_token_ids=_eos_token_ids(module),
            vocab_size=vocab_size,
            dtype=module.dtype,
            device=embedding_weight(module).device,
            fingerprint=fingerprint,
            _limits=[*limits, _context_limit(module.config.get_text_config())],
            _undo=undo,
        )
        foreign = not type(module).__module__.startswith("transformers.")
        if loaded.device.type != "meta" and (foreign or module.config.model_type not in TESTED):
            self_check(loaded, name)
        loaded._undo = undo.pop_all()
        return loaded


def _configs(module: PreTrainedModel) -> list[Any]:
    """Every config whose attention implementation a switch may change, each once."""
    found: dict[int, Any] = {}
    stack: list[Any] = [part.config for part in module.modules() if hasattr(part, "config")]
    while stack:
        config = stack.pop()
        if hasattr(config, "_attn_implementation_internal") and id(config) not in found:
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


def _context_limit(config: Any) -> tuple[int, str]:
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        length = getattr(config, key, None)
        if isinstance(length, int) and length > 0:
            return length, f"its context length is {length}"
    return _NO_LIMIT, f"sharegen takes at most {_NO_LIMIT}"
