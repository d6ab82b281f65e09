"""Weights in FP8 blocks that stay what they are, through whatever transformers did to their names.

What became of a weight while nothing was read is known (`unread.py`). The same moves, done to its
numbers and, block by block, to its scales, give both for the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from sharegen.engine.model.fp8.blocks import BLOCK
from sharegen.engine.model.fp8.experts import is_known, projections
from sharegen.engine.model.fp8.products import E4M3
from sharegen.engine.model.fp8.quantising import STAY, Place, ScaledRows, install
from sharegen.engine.model.stored.dequantised import Dequantised
from sharegen.engine.model.stored.unread import Unread, leaves, of_blocks, with_leaves
from sharegen.errors import ModelError

_NAN = 0x7F  # of e4m3, beside the sign


def install_stored_blocks(model: PreTrainedModel, name: str, device: torch.device) -> int:
    """Put the weights in blocks that are not read yet where the model multiplies them as stored.

    Those of modules that are not known or stay as they are (`quantising.py`), those whose blocks
    were joined or cut to others, on a GPU those of sizes that its products do not take, and experts
    of which some are none of these are left to be dequantised. Returns how many were put. name: of
    the model.
    """
    found = _places(model, device)
    for place in found:
        rows = ScaledRows(*_read(name, place.name, model.get_parameter(place.name), device))
        install(model, place, rows)
    return len(found)


def _places(model: PreTrainedModel, device: torch.device) -> list[Place]:
    """The weights that are multiplied as they are stored: of experts all, or none."""
    found: list[Place] = []
    experts: list[Place] = []
    for path, module in model.named_modules():
        if type(module) is nn.Linear and not STAY & set(path.split(".")):
            found.append(Place(path, "weight", is_transposed=False))
        elif is_known(module):
            experts += [Place(path, each, module.is_transposed) for each in projections(module)]

    def fits(place: Place) -> bool:
        return not place.is_transposed and _are_blocks(model.get_parameter(place.name), device)

    # One implementation serves all experts of a model.
    return [*filter(fits, found), *(experts if all(map(fits, experts)) else [])]


def _are_blocks(weight: torch.Tensor, device: torch.device) -> bool:
    if device.type == "cuda" and any(size % BLOCK for size in weight.shape[-2:]):
        return False
    return isinstance(weight.data, Unread) and _scales(weight.data) is not None


def _scales(weight: Unread) -> Any:
    """The source of a scale for each block of a weight; None where they are no longer whole."""
    if not all(isinstance(leaf, Dequantised) and leaf.scales for leaf in leaves(weight)):
        return None
    return of_blocks(weight.source, BLOCK, lambda leaf: leaf.scales)


def _read(
    model: str, name: str, weight: torch.Tensor, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers, in e4m3, and a scale for each block of them."""
    assert isinstance(weight.data, Unread)
    numbers = with_leaves(weight.data.source, lambda leaf: leaf.stored)
    values = torch.empty(weight.shape, dtype=E4M3, device=device)
    numbers.fill(values, [0] * weight.ndim)
    if (values.view(torch.uint8) & _NAN == _NAN).any():
        raise ModelError(f"model {model}: {name} holds NaN: the checkpoint is broken")
    return values, Unread(_scales(weight.data)).read(device)
