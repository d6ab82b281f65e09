"""Experts in MXFP4 that stay what they are, in the order that their kernel wants.

What became of a weight while nothing was read is known (`unread.py`): where it is all of one of the
checkpoint's, its bytes are read, and brought into that order expert by expert.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from sharegen.engine.model.fp4.numbers import powers
from sharegen.engine.model.fp4.products import FP4
from sharegen.engine.model.fp8.quantising import (
    Place,
    ScaledRows,
    install,
    pack_experts,
    places_of_fp4,
    shape_of_rows,
)
from sharegen.engine.model.stored.dequantised import Dequantised, usable
from sharegen.engine.model.stored.unread import Unread, whole_leaf
from sharegen.errors import ModelError
from sharegen.kernels.fp4_words import LARGEST_SCALE


def install_stored_fp4(model: PreTrainedModel, name: str, device: torch.device) -> int:
    """Put the experts' weights, which are not read yet, where the model multiplies them as stored.

    name: of the model. Returns how many there are. Raises ModelError where there are none, one is
    not in MXFP4, and for scales that are not multiplied.
    """
    found = places_of_fp4(model, name)
    for place in found:
        install(model, place, _read(model, name, place, device))
    return len(found)


def _read(model: PreTrainedModel, name: str, place: Place, device: torch.device) -> ScaledRows:
    weight = model.get_parameter(place.name)
    data = weight.data.transpose(-2, -1) if place.is_transposed else weight.data
    leaf = whole_leaf(data) if isinstance(data, Unread) else None
    if not (isinstance(leaf, Dequantised) and leaf.small):
        raise ModelError(
            f"model {name}: {place.name} is not stored in MXFP4 as other experts are: leave out "
            f"--quantization {FP4}"
        )
    scales = Unread(leaf.scales).read(device)
    of_what = f"{place.name}_scales"
    usable(name, of_what, powers(scales))
    most, largest = int(scales.max()), LARGEST_SCALE
    if most > largest:
        raise ModelError(
            f"model {name}: {of_what} holds a scale of 2^{most - 127}, and 2^{largest - 127} is "
            f"the largest that is multiplied as it is stored: leave out --quantization {FP4}"
        )
    blocks = Unread(leaf.stored).read(device).flatten(-2)
    shape = shape_of_rows(weight, place)
    return pack_experts(zip(blocks, scales, strict=True), shape, device)
