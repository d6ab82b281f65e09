"""Load a Hugging Face model and prepare it for the engine.

The modelling code stays Hugging Face's own: sharegen plugs its attention in through transformers'
`AttentionInterface` and registers no mask function, so that no mask is ever built.
"""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from sharegen.common.start_clock import START, WEIGHTS
from sharegen.engine.model import interface, last_layer
from sharegen.engine.model.attention.spreading import all_or_none, install_spreading
from sharegen.engine.model.checkpoint import source as checkpoint
from sharegen.engine.model.checkpoint.adapter import locate_adapter, merge_adapter, without_wrapper
from sharegen.engine.model.checkpoint.reading import DEQUANTIZE, Reading, reading_of
from sharegen.engine.model.checkpoint.source import Source, quiet
from sharegen.engine.model.checkpoint.weights import (
    build_on_meta,
    load_weights,
    refuse_other_forms,
    stored_quantization,
)
from sharegen.engine.model.cpu_experts import fill_experts
from sharegen.engine.model.fingerprint import fingerprint_of_module, fingerprint_of_source
from sharegen.engine.model.fp4.products import FP4
from sharegen.engine.model.fp8.loading import blocks_on_meta, fp4_on_meta, quantise_on_meta
from sharegen.engine.model.fp8.quantising import quantise_in_place
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS, StoredFP8
from sharegen.engine.model.lent.copies import Copies
from sharegen.engine.model.lent.lending import Lent, configs_of, is_lent
from sharegen.engine.model.lent.sharded import refuse_sharded
from sharegen.engine.model.loaded import LoadedModel, on
from sharegen.engine.model.probe import IMPLEMENTATION as PROBE
from sharegen.engine.model.probe import embedding_weight, probe, refusal
from sharegen.engine.model.rope import hold_frequencies, make_frequencies_once
from sharegen.engine.model.self_check import TESTED, self_check
from sharegen.engine.model.states.mixers import install
from sharegen.engine.model.stored.forms import KEPT
from sharegen.engine.model.tensor_parallel.load_shard import load_shard, random_shard
from sharegen.engine.model.tensor_parallel.ranks import Ranks
from sharegen.engine.model.tensor_parallel.sharding_plan import TensorParallelPlan
from sharegen.errors import ModelError, UsageError

QUANTIZATIONS = ("fp8", *KEPT, DEQUANTIZE)
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
    """Compute attention as transformers asks for it.

    Args:
        query: [1, Hq, T, Dk].
        key, value: [1, Hkv, T, *].

    Returns:
        [1, T, Hq, Dv], and no weights.

    The per-layer constants (scaling, window, softcap) were read by the probe; only the sinks are
    tensors and are read from the call.
    """
    out = last_layer.attended()
    if out is None:
        own = interface.own_heads(module, query, key, value)
        q, k, v = (tensor[0].transpose(0, 1) for tensor in own)
        if torch.compiler.is_compiling():
            out = interface.attend_in_order(q, k, v, s_aux)
        else:
            out = interface.attend(getattr(module, _LAYER_ATTRIBUTE, None), q, k, v, s_aux)
        last_layer.leave_with(out)
    return out.unsqueeze(0).contiguous(), None  # models view it


AttentionInterface.register(IMPLEMENTATION, sharegen_attention)


@START.part(WEIGHTS)
def load_model(
    model: str | os.PathLike[str] | nn.Module,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    adapter: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    weights: bool = True,
    ranks: Ranks | None = None,
    quantization: str | None = None,
    revision: str | None = None,
) -> LoadedModel:
    """Load and probe a model.

    model: a local folder, a GGUF file, a hub id, or a loaded PreTrainedModel or PeftModel, which is
        used as it is: where it lies, and without another adapter. Layers that have adapters are
        computed with copies of their weights, the adapters merged.
    device: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1".
    dtype: "auto" (float32 on a CPU, the checkpoint's on CUDA), "float32", "bfloat16", "float16".
        A loaded model is computed in its own with "auto", else with copies of its weights.
    adapter: a LoRA adapter (folder or hub id), merged into the weights.
    weights: False builds the model on torch's meta device from its config alone: enough to plan.
        A torch.device, of which the dtype may hang, need not be here then.
    ranks: load this rank's shard of the model, on the rank's device. All ranks must load.
    quantization: "fp8" makes the large weights FP8 as they are read, on a GPU that has it, or FP8
        copies of those of a loaded model. "mxfp4" multiplies the experts that a checkpoint has in
        MXFP4 as they are stored, "fp8-blocks" what it has in FP8 by blocks; None does the latter
        where it can, in bfloat16 on one GPU that has such products, and "dequantize" nowhere. A
        checkpoint that is quantised otherwise needs no word about it.
    revision: branch, tag or commit of a model on the hub; by default its main one.

    Raises ModelError, in one line, for a model that is not there, does not load or that the engine
    could not run exactly; UsageError for a device, dtype or quantization that does not exist.
    """
    model = without_wrapper(model)
    if ranks is not None and (adapter is not None or isinstance(model, PreTrainedModel)):
        what = "an adapter" if adapter is not None else "a model that is loaded already"
        raise ModelError(
            f"{what} cannot be cut for several GPUs: save the model, adapter merged, in a folder "
            "and give that"
        )
    if quantization not in (None, *QUANTIZATIONS):
        raise UsageError(f"unknown quantization {quantization!r}: use {', '.join(QUANTIZATIONS)}")
    if isinstance(model, PreTrainedModel):
        if revision is not None:
            raise UsageError(
                f"revision {revision!r} is of a model on the hub, and this one is loaded already: "
                "leave it out"
            )
        if is_lent(model):
            raise ModelError("the model is in use already: release the one that has it first")
        name = type(model).__name__
        refuse_sharded(model)
        devices = sorted({str(parameter.device) for parameter in model.parameters()})
        if len(devices) > 1:
            raise ModelError(
                f"model {name} is spread over several devices ({', '.join(devices)}): load it on "
                "one"
            )
        _refuse_for_loaded(model, name, device, adapter)
        _refuse_encoder_decoder(name, model.config)
        if quantization is not None and getattr(model.config, "quantization_config", None):
            raise ModelError(f"model {name} is quantised already: leave out quantization")
        refuse_other_forms(name, None, quantization)
        if quantization == DEQUANTIZE:
            raise ModelError(f"model {name} is loaded already: leave out quantization")
        named = None if dtype == "auto" else _named(dtype, model)
        return _borrow(model, name, named, quantization is not None)
    if not isinstance(model, (str, os.PathLike)):
        refuse_sharded(model)
        raise ModelError(
            f"the model is a {type(model).__name__}: give a folder, a hub id or a transformers "
            f"PreTrainedModel{_inside(model)}"
        )
    if ranks is not None:
        target = ranks.device
    elif isinstance(device, torch.device) and not weights:
        target = device
    else:
        target = checkpoint.resolve_device(device)
    source = checkpoint.locate(model, trust_remote_code, revision)
    config = checkpoint.load_config(source)
    _refuse_encoder_decoder(source.name, config)
    precision = checkpoint.resolve_dtype(dtype, target, config)
    fingerprint = fingerprint_of_source(source)
    apart = "an adapter is merged into numbers" if adapter is not None else None
    if ranks is not None:
        apart = "several GPUs take numbers"
    reading = reading_of(
        source, config, quantization, precision, target, apart=apart, weights=weights
    )
    if ranks is not None:
        shard, plan = load_shard(
            source, config, precision, ranks, weights, reading.quantization, reading.why
        )
        return _prepare_shard(shard, plan, source.name, fingerprint, ranks, reading)
    lora = None
    if adapter is not None:
        lora = locate_adapter(adapter)
        fingerprint = f"{fingerprint}+{fingerprint_of_source(lora)}"
    if not weights:
        module = _on_meta(source, config, precision, reading.quantization)
    elif lora is None:
        module = load_weights(source, config, precision, target, reading.quantization, reading.why)
    else:
        module = _load_with_adapter(source, config, precision, target, reading, lora)
    return _prepare(module, source.name, fingerprint, reading)


def _on_meta(
    source: Source, config: Any, dtype: torch.dtype, quantization: str | None
) -> PreTrainedModel:
    """The model without weights, of the sizes that they would have."""
    stored = stored_quantization(source, config, quantization)
    module = build_on_meta(source, config, dtype)
    refuse_other_forms(source.name, stored, quantization)
    own = stored if isinstance(stored, StoredFP8) else None
    if quantization == BLOCKS:
        blocks_on_meta(module)
    elif quantization == FP4:
        fp4_on_meta(module, source.name)
    elif quantization is not None or own is not None:
        quantise_on_meta(module, source.name, own)  # before it is probed, as in a run
    return module


def _refuse_for_loaded(
    model: PreTrainedModel, name: str, device: str | torch.device, adapter: object
) -> None:
    """Raise UsageError for what is asked of a checkpoint, and not done to a module of somebody's.

    Its own device is no other; "cuda" is any of them.
    """
    if adapter is not None:
        raise UsageError(
            f"adapter {str(adapter)!r:.60} goes to a checkpoint's weights, and model {name} is "
            "loaded already: give a PeftModel that has the adapter"
        )
    if not isinstance(device, str) or device == "auto":
        return
    wanted, own = checkpoint.resolve_device(device), model.device
    if wanted.type != own.type or wanted.index not in (None, own.index):
        raise UsageError(
            f"device is {device!r}, and model {name} lies on {own} already: leave device out, or "
            "move the model first"
        )


def _named(dtype: str | torch.dtype, model: PreTrainedModel) -> torch.dtype | None:
    """The dtype that is asked for, where that is another than the module's. Raises UsageError."""
    found = checkpoint.resolve_dtype(dtype, model.device, model.config)
    return None if found == model.dtype else found


def _borrow(
    model: PreTrainedModel, name: str, dtype: torch.dtype | None, quantized: bool
) -> LoadedModel:
    """A module of somebody's own, which is sharegen's during sharegen's forwards alone.

    dtype: that copies of its weights are to have; None where it computes with its own. quantized:
    whether copies of large weights are to be FP8.
    """
    lent, copies = Lent(model), Copies()
    try:
        with on(model.device), lent.changing():
            fingerprint = fingerprint_of_module(model)
            copies.put(model, dtype, quantized)
            loaded = _prepare(model, name, fingerprint)
    except BaseException:
        lent.end()
        raise
    loaded.on_change(copies.refresh)
    return replace(loaded, lent=lent)


def _inside(model: object) -> str:
    """Where a wrapper has the model that it wraps, as far as wrappers are known."""
    for name in ("module", "_orig_mod", "model"):
        if isinstance(getattr(model, name, None), PreTrainedModel):
            return f", which this one has as .{name}"
    return ""


def load_random_shard(
    config: Any, name: str, dtype: torch.dtype, ranks: Ranks, quantization: str | None = None
) -> LoadedModel:
    """Make this rank's shard of a model of random weights, for measurements. All ranks must load.

    The shard alone is made, on the rank's device. Raises ModelError for a model that is not cut.
    """
    shard, plan = random_shard(config, name, dtype, ranks, quantization)
    reading = Reading(quantization)
    return _prepare_shard(shard, plan, name, f"random:{name}", ranks, reading)


def _prepare_shard(
    shard: PreTrainedModel,
    plan: TensorParallelPlan,
    name: str,
    fingerprint: str,
    ranks: Ranks,
    reading: Reading,
) -> LoadedModel:
    loaded = _prepare(shard, name, fingerprint, reading)
    for own, planned in zip(loaded.layers, plan.layers, strict=True):
        if own.sizes != planned.sizes:
            raise refusal(name, f"a shard of its attention has {own.sizes}, not {planned.sizes}")
    loaded.ranks = ranks
    return loaded


def load_as_stored(
    model: str | os.PathLike[str],
    dtype: torch.dtype,
    adapter: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> PreTrainedModel:
    """The Hugging Face model alone, on the CPU, with its weights as the checkpoint has them.

    Of weights in safetensors of that dtype nothing is read before it is used. Raises ModelError.
    """
    source = checkpoint.locate(model, trust_remote_code, revision)
    config = checkpoint.load_config(source)
    cpu = torch.device("cpu")
    if adapter is None:
        return load_weights(source, config, dtype, cpu)
    lora = locate_adapter(adapter)
    return _load_with_adapter(source, config, dtype, cpu, Reading(None), lora)


def _load_with_adapter(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    reading: Reading,
    lora: Source,
) -> PreTrainedModel:
    """An adapter is merged into weights as the checkpoint has them: only then they become FP8."""
    quantization = reading.quantization
    if quantization in KEPT:
        raise ModelError(
            f"model {source.name}: an adapter is not merged into {KEPT[quantization].name}: leave "
            f"out --quantization {quantization}"
        )
    if quantization is None:
        module = load_weights(source, config, dtype, device, why=reading.why)
        return merge_adapter(module, lora)
    stored_quantization(source, config, quantization)
    module = load_weights(source, config, dtype, torch.device("cpu"))
    return quantise_in_place(merge_adapter(module, lora), source.name, device)


def _refuse_encoder_decoder(name: str, config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise refusal(name, "it is an encoder-decoder model")


def _prepare(
    module: PreTrainedModel, name: str, fingerprint: str, reading: Reading | None = None
) -> LoadedModel:
    with ExitStack() as undo, quiet():
        for config in configs_of(module):
            undo.callback(
                setattr, config, "_attn_implementation_internal", config._attn_implementation
            )
        held = hold_frequencies(module)
        for frequencies in held:
            undo.callback(frequencies.release)
        make_frequencies_once(module, undo)
        module.set_attn_implementation(PROBE)
        recording, vocab_size = probe(module, name)
        module.set_attn_implementation(IMPLEMENTATION)
        install(recording.mixers, undo)
        layers = all_or_none(recording.layers)
        install_spreading(recording.modules, layers, undo)
        if embedding_weight(module).device.type == "cpu":
            fill_experts(module, undo)
        for index, attention_module in enumerate(recording.modules):
            if recording.modules.count(attention_module) == 1:  # else the order of calls tells
                setattr(attention_module, _LAYER_ATTRIBUTE, index)
                undo.callback(delattr, attention_module, _LAYER_ATTRIBUTE)
        limits = [(frequencies.length, frequencies.reason) for frequencies in held]
        loaded = LoadedModel(
            model=module,
            config=module.config,
            layers=layers,
            mixers=recording.mixers,
            eos_token_ids=eos_token_ids(module),
            vocab_size=vocab_size,
            dtype=recording.dtype or module.dtype,
            device=embedding_weight(module).device,
            fingerprint=fingerprint,
            quantization=None if reading is None else reading.quantization,
            _limits=[*limits, _context_limit(module.config.get_text_config())],
            _undo=undo,
        )
        foreign = not type(module).__module__.startswith("transformers.")
        is_known = not foreign and module.config.model_type in TESTED
        if loaded.device.type != "meta" and not is_known:
            self_check(loaded, name)
        loaded._undo = undo.pop_all()
    if loaded.device.type != "meta" and not is_known:
        warnings.warn(
            f"model {name}: {module.config.model_type} is not among the architectures that are "
            "tested, and agrees with its own attention on two prompts (--show-model says what was "
            "found in it)",
            stacklevel=2,
        )
    return loaded


def eos_token_ids(module: PreTrainedModel) -> tuple[int, ...]:
    """Read the end tokens from the generation config, else the config; a number or a list of them.

    Raises ModelError for what is no token's id.
    """
    for config in (module.generation_config, module.config, module.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            found = tuple(ids) if isinstance(ids, (list, tuple)) else (ids,)
            for token in found:
                if not isinstance(token, int) or not -(2**31) <= token < 2**31:
                    raise ModelError(f"the model's eos_token_id holds {token!r:.40}: no token's id")
            return found
    return ()


def _context_limit(config: Any) -> tuple[int, str]:
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"):
        length = getattr(config, key, None)
        if isinstance(length, int) and length > 0:
            return length, f"its context length is {length}"
    return _NO_LIMIT, f"sharegen takes at most {_NO_LIMIT}"
