"""A checkpoint's weights become a model's, as they are or out of what they are stored as."""

from __future__ import annotations

import copy
import warnings
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.quantizers.auto import AutoHfQuantizer

from sharegen.common.extras import install
from sharegen.engine.model.checkpoint.gguf import kinds_of, without_progress_bar
from sharegen.engine.model.checkpoint.source import Source, explained
from sharegen.engine.model.fp8.loading import ToFP8
from sharegen.engine.model.fp8.quantising import quantise_in_place
from sharegen.engine.model.fp8.stored_fp8 import StoredFP8, stored_fp8
from sharegen.errors import ModelError


def load_weights(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
) -> PreTrainedModel:
    """The model with its weights on `device`. Raises ModelError, also when weights are missing.

    quantization: "fp8" makes the large ones FP8 as they are read. Raises UsageError for a device
    that has no FP8, where they are to be, or are in the checkpoint.
    """
    if source.gguf is not None:
        return _load_gguf(source, config, dtype, device, quantization)
    stored = stored_quantization(source, config, quantization)
    own = stored if isinstance(stored, StoredFP8) else None
    fp8 = None
    placement: dict[str, Any] = {}
    if quantization is not None or own is not None:
        fp8 = ToFP8(source.name, device, own)
        config = without_quantization(config)
        placement = {"quantization_config": fp8}
    elif stored is not None:
        # Quantised weights must be laid out on the device that they will run on.
        placement = {"device_map": {"": device}}
    with explained(source, "weights"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.origin,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused below in our words
            **placement,
            **source.arguments,
        )
    model, report = loaded
    refuse_missing(source, report)
    if fp8 is not None:
        model = fp8.finish(model)
    return (model if stored is not None else model.to(device)).eval()


def _load_gguf(
    source: Source, config: Any, dtype: torch.dtype, device: torch.device, quantization: str | None
) -> PreTrainedModel:
    """The model of a GGUF file; its weights, on the CPU in `dtype` first, become FP8 from there."""
    assert source.gguf is not None
    placement: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):
        placement = {"quantization_config": transformers.GgufConfig(dequantize=True)}
    with explained(source, "weights"), without_progress_bar():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source.origin,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused in our words
            **placement,
            **source.arguments,
        )
    model, report = loaded
    refuse_missing(source, report)
    model.config = without_quantization(model.config)
    warnings.warn(
        f"model {source.name}: {kinds_of(source.gguf)} of a GGUF file, dequantised to "
        f"{str(dtype).removeprefix('torch.')}{' and on to FP8' if quantization else ''}",
        stacklevel=2,
    )
    if quantization is not None:
        return quantise_in_place(model, source.name, device).eval()
    return model.to(device).eval()


def refuse_missing(source: Source, report: dict[str, Any]) -> None:
    """Raise ModelError for weights that transformers reports as missing or of another shape."""
    missing = sorted(report["missing_keys"]) + sorted(key[0] for key in report["mismatched_keys"])
    if missing:
        raise ModelError(
            f"model {source.name}: {len(missing)} weights are missing or of another shape, "
            f"such as {missing[0]}: the folder is incomplete or not of this architecture"
        )


def stored_quantization(
    source: Source, config: Any, quantization: str | None = None
) -> StoredFP8 | str | None:
    """How the checkpoint's weights are quantised: FP8, or the method by which transformers does it.

    quantization: what is asked besides. Raises ModelError for a method that transformers would
    skip, and then read nonsense, for FP8 that it would widen, and for two quantisations at once.
    """
    parts = (config, config.get_text_config())
    settings = next(
        (q for q in (getattr(c, "quantization_config", None) for c in parts) if q), None
    )
    if settings is None:
        return None
    method = settings.get("quant_method", "bitsandbytes")
    if quantization is not None:
        raise ModelError(
            f"model {source.name} is quantised already ({method}): leave out --quantization "
            f"{quantization}"
        )
    stored = stored_fp8(source.name, settings)
    if stored is not None:
        return stored
    with explained(source, "weights"):
        known = AutoHfQuantizer.supports_quant_method(settings)
    if not known:
        raise ModelError(
            f"model {source.name} is quantised by {method}, which transformers does not know: "
            "give a checkpoint that is not quantised, or quantised by a method that it has"
        )
    if find_spec("accelerate") is None:
        raise ModelError(
            f"model {source.name} is quantised ({method}), and loading it needs accelerate: "
            + install("quantised")
        )
    return str(method)


def without_quantization(config: Any) -> Any:
    """A copy that says nothing of how the checkpoint is quantised."""
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config()):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    return config


def build_on_meta(source: Source, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The model without weights, on torch's meta device. Raises ModelError."""
    with explained(source, "config"), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=source.trust_remote_code,
        )
        model.set_experts_implementation("batched_mm")  # the one that needs no numbers
    return model.eval()
