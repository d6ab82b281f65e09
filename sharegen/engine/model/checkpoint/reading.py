"""How a checkpoint's quantised weights are read, by what is asked and by what a device multiplies.

Weights in FP8 by blocks are multiplied as they are stored wherever that works, for the checkpoint
means it; else they are dequantised, as all other forms are, and the line at load says why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sharegen.engine.model.checkpoint.source import Source
from sharegen.engine.model.fp8.blocks import no_block_products, wrong_block_products
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS
from sharegen.engine.model.stored.forms import Form, form_of
from sharegen.engine.model.stored.scaled_floats import FP8Blocks
from sharegen.errors import ModelError

DEQUANTIZE = "dequantize"
"""The quantization with which weights are dequantised, whatever the device multiplies."""


@dataclass(frozen=True)
class Reading:
    """What becomes of a checkpoint's weights.

    quantization: what they are to be, as `load_weights` takes it; None: as the checkpoint has them,
        or dequantised. why: why weights are dequantised that are multiplied as they are stored
        elsewhere.
    """

    quantization: str | None
    why: str | None = None


def reading_of(
    source: Source,
    config: Any,
    asked: str | None,
    dtype: torch.dtype,
    device: torch.device,
    *,
    apart: str | None = None,
    weights: bool = True,
) -> Reading:
    """Decide how the weights are read where nothing is asked, or that they be dequantised.

    dtype, device: of the run. apart: what the model is loaded with that takes numbers alone.
    weights: whether they are read at all; else the device need not be here. Raises ModelError for a
    checkpoint without weights that could be dequantised, where that is asked.
    """
    if asked not in (None, DEQUANTIZE):
        return Reading(asked)
    form = _form(source, config)
    if asked == DEQUANTIZE:
        if form is None and source.gguf is None:
            raise ModelError(
                f"model {source.name} has no weights that are dequantised: leave out "
                f"--quantization {DEQUANTIZE}"
            )
        return Reading(None)
    if not isinstance(form, FP8Blocks):
        return Reading(None)
    why = apart
    if why is None:
        why = no_block_products(device)
    if why is None and dtype != torch.bfloat16:
        why = "their products are in bfloat16"
    if why is None and weights:
        why = wrong_block_products(device)
    return Reading(None, why) if why is not None else Reading(BLOCKS)


def _form(source: Source, config: Any) -> Form | None:
    if source.gguf is not None:
        return None
    for part in (config, config.get_text_config()):
        settings = getattr(part, "quantization_config", None)
        if settings:
            return form_of(source.name, settings)
    return None
