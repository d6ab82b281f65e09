"""Weights become FP8 while a checkpoint is read, one by one, as a quantizer of transformers.

transformers reads, renames and merges the tensors as it does for every model, and hands over each
weight as the model has it. So what is read is never there twice: beside the result, the device
holds a piece of one weight, and the host memory one weight (of experts: those of a layer).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from sharegen.engine.model.fp8.blocks import BLOCK
from sharegen.engine.model.fp8.products import E4M3, check_device
from sharegen.engine.model.fp8.quantising import (
    Place,
    ScaledRows,
    begin_quantising,
    check,
    empty_fp4,
    install,
    naming,
    places,
    places_of_blocks,
    places_of_fp4,
    refuse_infinite,
    shape_of_rows,
    warn_of_small_share,
)
from sharegen.engine.model.fp8.stored_fp8 import StoredFP8
from sharegen.engine.model.starting.moving import move_to, on_device
from sharegen.errors import ModelError, SharegenError

_METHOD = "sharegen_fp8"


@dataclass
class RowCount:
    """Counts rows that were smaller floats: all of them, and those that FP8 holds only rounded."""

    all: int = 0
    rounded: int = 0

    def add(self, rows: ScaledRows) -> None:
        """Count those of a weight."""
        self.all += rows.scales.numel()
        self.rounded += rows.rounded

    def tell(self, name: str) -> None:
        """Warn, in one line, of rows that are rounded. name: of the model."""
        if self.rounded:
            warnings.warn(
                f"model {name}: {self.rounded:,} of {self.all:,} rows of MXFP4 have exponents "
                "further apart than FP8's: their smallest numbers are rounded",
                stacklevel=2,
            )


@register_quantization_config(_METHOD)
class ToFP8(QuantizationConfigMixin):
    """What `from_pretrained` is told as its `quantization_config`.

    name: of the model, for messages. device: where the weights go. stored: how the checkpoint has
    FP8 weights itself, if so. by_powers: whether a weight gets powers of two as scales, for its
    numbers are such that e4m3 may have them all.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        stored: StoredFP8 | None = None,
        by_powers: Callable[[torch.Tensor], bool] = lambda weight: False,
    ) -> None:
        self.quant_method = _METHOD  # type: ignore[assignment]
        self.name = name
        self.device = device
        self.stored = stored
        self.by_powers = by_powers
        self.rows = RowCount()
        self.error: SharegenError | None = None

    def finish(self, model: Any) -> PreTrainedModel:
        """The model as any other, on the device. Raises what was found wrong on the way."""
        if self.error is not None:
            raise self.error
        model.hf_quantizer.remove_quantization_config(model)
        warn_of_small_share(model, self.name)
        self.rows.tell(self.name)
        moved: PreTrainedModel = move_to(model, self.device)
        return moved


@register_quantizer(_METHOD)
class _Quantizer(HfQuantizer):
    quantization_config: ToFP8

    def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.places: dict[str, Place] = {}
        self.rows: dict[str, ScaledRows] = {}

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        settings = self.quantization_config
        if settings.stored is None:
            found = places(model)
            check(found, model, settings.name, settings.device)
        else:
            check_device(settings.device)
            found = expect_scales(model, settings.name, settings.stored)
        self.places = {place.name: place for place in found}

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return param_name in self.places

    def get_quantize_ops(self) -> ConversionOps:
        return _ToRows(self)

    def take(self, model: PreTrainedModel, name: str, weight: torch.Tensor) -> torch.Tensor:
        """Keep a weight in FP8, as it was read. Returns what stands in for it until all are."""
        settings, place = self.quantization_config, self.places[name]
        expected = model.get_parameter(name).shape
        try:
            powers = settings.by_powers(weight)
            with naming(settings.name, name):
                if weight.shape != expected:
                    raise ModelError(f"is {list(weight.shape)} and should be {list(expected)}")
                if settings.stored is None:
                    made = begin_quantising(
                        weight, place.is_transposed, settings.device, powers=powers
                    )
                    self.rows[name] = made
                    if powers:
                        settings.rows.add(made)
                else:
                    values = as_stored(on_device(weight, settings.device))
                    self.rows[name] = ScaledRows(
                        values, torch.empty(len(values), 1, dtype=torch.float32)
                    )
        except ModelError as error:  # transformers would log it, and raise another
            settings.error = settings.error or error
        return torch.empty(expected, device="meta")

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **kwargs: Any) -> None:
        settings = self.quantization_config
        for name, rows in self.rows.items():
            place = self.places[name]
            try:
                if settings.stored is None:
                    with naming(settings.name, name):
                        refuse_infinite(rows)
                else:
                    scale = model.get_parameter(f"{name}_scale").data
                    with naming(settings.name, f"{name}_scale"):
                        rows = ScaledRows(rows.values, usable_scale(scale, len(rows.values)))
            except ModelError as error:
                settings.error = settings.error or error
            install(model, place, rows)

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False


class _ToRows(ConversionOps):
    """The last step of reading a weight."""

    def __init__(self, quantizer: _Quantizer) -> None:
        self.quantizer = quantizer

    def __deepcopy__(self, memo: Any) -> _ToRows:
        return self

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        *,
        model: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        read = {}
        for name in list(input_dict):
            weight = input_dict.pop(name)
            weight = weight[0] if isinstance(weight, list) else weight
            wanted = name in self.quantizer.places
            read[name] = self.quantizer.take(model, name, weight) if wanted else weight
        return read


def quantise_on_meta(model: PreTrainedModel, name: str, stored: StoredFP8 | None) -> None:
    """Give a model without weights the sizes that they have in FP8.

    name: of the model; stored: how the checkpoint has FP8 weights itself, if so.
    """
    install_on_meta(model, places(model) if stored is None else expect_scales(model, name, stored))


def blocks_on_meta(model: PreTrainedModel) -> None:
    """Give a model without weights the sizes that they have in FP8 by blocks."""
    for place in places_of_blocks(model):
        values = torch.empty_like(model.get_parameter(place.name), dtype=E4M3, device="meta")
        install(model, place, ScaledRows(values, values[..., ::BLOCK, ::BLOCK].float()))


def fp4_on_meta(model: PreTrainedModel, name: str) -> None:
    """Give a model without weights the sizes that they have with experts in MXFP4.

    name: of the model. Raises what `places_of_fp4` does.
    """
    for place in places_of_fp4(model, name):
        shape = shape_of_rows(model.get_parameter(place.name), place)
        install(model, place, empty_fp4(shape, torch.device("meta")))


def install_on_meta(model: PreTrainedModel, found: list[Place]) -> None:
    """Put empty FP8 weights in the place of these weights of a model, or of a rank's shard of
    it.
    """
    for place in found:
        shape = shape_of_rows(model.get_parameter(place.name), place)
        values = torch.empty(shape, dtype=E4M3, device="meta")
        install(model, place, ScaledRows(values, values[..., :1].float()))


def expect_scales(model: PreTrainedModel, name: str, stored: StoredFP8) -> list[Place]:
    """The weights that the checkpoint has in FP8, with a parameter beside each for its scale."""
    if has_experts(model):
        raise ModelError(
            f"model {name} has experts in FP8, whose scales are not read: give its checkpoint "
            "in bfloat16, with --quantization fp8"
        )
    found = []
    for module_name, module in model.named_modules():
        if type(module) is nn.Linear and stored.has(module_name):
            shape = (module.out_features, 1) if stored.per_row else (1,)
            scale = torch.empty(shape, dtype=torch.float32, device="meta")
            module.register_parameter("weight_scale", nn.Parameter(scale, requires_grad=False))
            found.append(Place(module_name, "weight", is_transposed=False))
    return found


def has_experts(model: PreTrainedModel) -> bool:
    """Whether a model has weights of several experts in one tensor."""
    return any(
        parameter.ndim == 3
        for module in model.modules()
        if not isinstance(module, nn.Conv1d)
        for parameter in module.parameters(recurse=False)
    )


def as_stored(weight: torch.Tensor) -> torch.Tensor:
    """Numbers of e4m3, which transformers has widened without loss, as what they were."""
    values = weight.to(E4M3)
    if not torch.equal(values.to(weight.dtype), weight):  # NaN equals nothing
        raise ModelError("holds NaN, or numbers that are not FP8")
    return values


def usable_scale(scale: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a scale [rows, 1] or [1] as [rows, 1] in float32."""
    if not (scale.isfinite() & (scale > 0)).all():
        raise ModelError("holds a scale that is zero, negative or no number")
    return scale.float().expand(rows, 1).contiguous()
