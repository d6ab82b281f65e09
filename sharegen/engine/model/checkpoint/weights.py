"""A checkpoint's weights become a model's, as they are or out of what they are stored as."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.quantizers.auto import AutoHfQuantizer

from sharegen.common.extras import install
from sharegen.engine.model.checkpoint.gguf import kinds_of, without_progress_bar
from sharegen.engine.model.checkpoint.source import Source, explained
from sharegen.engine.model.checkpoint.tensors import stored_tensors, take_generation_config
from sharegen.engine.model.fp4.products import FP4, check_fp4_products
from sharegen.engine.model.fp8.blocks import check_block_products
from sharegen.engine.model.fp8.loading import ToFP8, has_experts
from sharegen.engine.model.fp8.quantising import quantise_in_place
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS, StoredFP8, stored_fp8
from sharegen.engine.model.starting.moving import move_to
from sharegen.engine.model.stored.dequantised import is_small
from sharegen.engine.model.stored.forms import KEPT, Form, as_numbers, form_of
from sharegen.engine.model.stored.scaled_floats import FP8Rows
from sharegen.engine.model.stored.stored_blocks import install_stored_blocks
from sharegen.engine.model.stored.stored_fp4 import install_stored_fp4
from sharegen.engine.model.stored.unread import Unread
from sharegen.errors import ModelError

_SCALES = (".weight_scale", ".weight_scale_inv")
"""How names end under which checkpoints have what their weights are scaled by."""


def load_weights(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None = None,
    why: str | None = None,
) -> PreTrainedModel:
    """The model with its weights on `device`. Raises ModelError, also when weights are missing.

    quantization: "fp8" makes the large ones FP8 as they are read, "fp8-blocks" keeps those that are
    FP8 by blocks, "mxfp4" experts in MXFP4. why: for the line that says that they are dequantised
    (`reading.py`). Raises UsageError for a device that does not multiply
    what is to be kept so, or is FP8 in the checkpoint.
    """
    stored = None if source.gguf else stored_quantization(source, config, quantization)
    refuse_other_forms(source.name, stored, quantization)
    if source.gguf is not None:
        return _load_gguf(source, config, dtype, device, quantization)
    if isinstance(stored, Form):
        return _load_form(source, config, dtype, device, quantization, stored, why)
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
    if stored is None:
        refuse_scales(source, report["unexpected_keys"])
    if fp8 is not None:
        model = fp8.finish(model)
    return (model if stored is not None else move_to(model, device)).eval()


def _load_form(
    source: Source,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    quantization: str | None,
    form: Form,
    why: str | None,
) -> PreTrainedModel:
    """The model of a checkpoint whose weights become numbers, or FP8, one by one as it is read."""
    if quantization == BLOCKS:
        check_block_products(device)
    elif quantization == FP4:
        check_fp4_products(device, dtype)
    config = without_quantization(config)
    kind = type(build_on_meta(source, copy.deepcopy(config), dtype))  # which changes it
    fp8 = ToFP8(source.name, device, by_powers=is_small) if quantization == "fp8" else None
    placement: dict[str, Any] = {} if fp8 is None else {"quantization_config": fp8}
    with explained(source, "weights"):
        tensors = as_numbers(source.name, form, stored_tensors(source), dtype)
        loaded: Any = kind.from_pretrained(
            None,
            config=config,
            state_dict=tensors,
            dtype=dtype,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, and refused in our words
            **placement,
        )
        model, report = loaded
        take_generation_config(model, source)
    refuse_missing(source, report)
    if quantization == BLOCKS:
        count = install_stored_blocks(model, source.name, device)
        warnings.warn(
            f"model {source.name}: {form}: {count} weights are multiplied as they are stored, "
            f"others are dequantised to {str(dtype).removeprefix('torch.')}",
            stacklevel=2,
        )
    elif quantization == FP4:
        count = install_stored_fp4(model, source.name, device)
        warnings.warn(
            f"model {source.name}: {form}: {count} weights of experts are multiplied as they are "
            f"stored, others are {str(dtype).removeprefix('torch.')}",
            stacklevel=2,
        )
    else:
        tell(source.name, form, dtype, quantization, why)
    if fp8 is not None:
        model = fp8.finish(model)
    _read(model, device)
    return move_to(model, device).eval()


def _read(model: PreTrainedModel, device: torch.device) -> None:
    """Read what a model has that is not read yet, one tensor at a time, onto the device."""
    made: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                data = None if tensor is None else tensor.data
                if tensor is None or not isinstance(data, Unread):
                    continue
                if id(tensor) not in made:
                    read = data.read(device)
                    is_weight = isinstance(tensor, torch.nn.Parameter)
                    made[id(tensor)] = torch.nn.Parameter(read, False) if is_weight else read
                tensors[name] = made[id(tensor)]


def refuse_other_forms(
    name: str, stored: StoredFP8 | Form | str | None, quantization: str | None
) -> None:
    """Raise ModelError where a checkpoint is to be multiplied as it is stored, in another form."""
    kept = KEPT.get(quantization or "")
    if kept is not None and not isinstance(stored, kept.form):
        raise ModelError(
            f"model {name} is not stored in {kept.name}: leave out --quantization {quantization}"
        )


def tell(
    name: str, form: object, dtype: torch.dtype, quantization: str | None, why: str | None = None
) -> None:
    """Warn, in one line, that weights are not computed with as they are stored, and why."""
    on = "" if quantization is None else " and on to FP8 by rows"
    said = "" if why is None else f", for {why}"
    warnings.warn(
        f"model {name}: {form}, dequantised to {str(dtype).removeprefix('torch.')}{on} while read"
        f"{said}",
        stacklevel=2,
    )


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
    tell(source.name, f"GGUF ({kinds_of(source.gguf)})", dtype, quantization)
    if quantization is not None:
        return quantise_in_place(model, source.name, device).eval()
    return move_to(model, device).eval()


def refuse_missing(source: Source, report: dict[str, Any]) -> None:
    """Raise ModelError for weights that transformers reports as missing or of another shape."""
    missing = sorted(report["missing_keys"]) + sorted(key[0] for key in report["mismatched_keys"])
    if missing:
        raise ModelError(
            f"model {source.name}: {len(missing)} weights are missing or of another shape, "
            f"such as {missing[0]}: the folder is incomplete or not of this architecture"
        )


def refuse_scales(source: Source, left: Iterable[str]) -> None:
    """Raise ModelError where a checkpoint that is said to hold numbers has scales for them.

    left: the names of its tensors that the model has no place for.
    """
    scale = min((name for name in left if name.endswith(_SCALES)), default=None)
    if scale is not None:
        raise ModelError(
            f"model {source.name}: {scale} says that weights are quantised, and its config.json "
            "has no quantization_config, so they would be read as other numbers: give it the "
            "config.json that belongs to it"
        )


def stored_quantization(
    source: Source, config: Any, quantization: str | None = None
) -> StoredFP8 | Form | str | None:
    """How the checkpoint's weights are quantised; a name is of a method that transformers has.

    quantization: what is asked besides; the numbers of a known form are taken on to it. Raises
    ModelError for a method that transformers would skip, and then read nonsense, for kinds that are
    not known, and for two quantisations at once.
    """
    parts = (config, config.get_text_config())
    settings = next(
        (q for q in (getattr(c, "quantization_config", None) for c in parts) if q), None
    )
    if settings is None:
        return None
    form = form_of(source.name, settings)
    if form is not None:
        return form
    method = settings.get("quant_method", "bitsandbytes")
    stored = None
    if quantization is None or method == "compressed-tensors":
        stored = stored_fp8(source.name, settings)
    if stored is not None and method == "compressed-tensors":
        whole = build_on_meta(source, without_quantization(config), torch.bfloat16)
        if has_experts(whole):
            return FP8Rows()
    if quantization is not None:
        raise ModelError(
            f"model {source.name} is quantised already ({method}): leave out --quantization "
            f"{quantization}"
        )
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
