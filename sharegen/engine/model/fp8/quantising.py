"""Which weights of a model become FP8 or MXFP4, and how they take the place of what they were.

Large products of the decoder layers become FP8, and experts alone MXFP4. What stays as the
checkpoint has it: embeddings and the output head, norms, routers and gates of experts (a choice
among near equals turns on the last bits), low-rank side paths, and weights whose sizes the tensor
cores do not take.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from sharegen.engine.model.fp4.numbers import rounded
from sharegen.engine.model.fp4.products import FP4, check_fp4_products
from sharegen.engine.model.fp8.blocks import BLOCK, FP8BlockLinear, are_of_blocks, quantise_blocks
from sharegen.engine.model.fp8.experts import IMPLEMENTATION, is_known, projections
from sharegen.engine.model.fp8.products import (
    E4M3,
    MULTIPLE,
    FP8Linear,
    check_device,
    quantise_rows,
    quantise_rows_by_powers,
)
from sharegen.engine.model.fp8.stored_fp8 import BLOCKS
from sharegen.engine.model.starting.moving import move_to, on_device
from sharegen.errors import ModelError
from sharegen.kernels.fp4_words import GROUP, LARGEST_SCALE, pack

STAY = frozenset({
    "gate", "router", "shared_expert_gate", "altup", "laurel", "per_layer_input_gate",
    "per_layer_projection", "kv_b_proj",
})  # fmt: skip
"""Names of modules, or of what they are part of, that are left as they are: the last one spreads
latents out, and attention over these multiplies by both halves of its weight."""

MADE = ("fp8", BLOCKS, FP4)
"""The quantizations that numbers become."""

_SMALL_SHARE = 0.5
_PIECE = 2**24  # numbers that are quantised at a time


@dataclass(frozen=True)
class Place:
    """A weight that becomes FP8 or MXFP4.

    module: its name; parameter: the weight's name there; is_transposed: it is [..., in, out].
    """

    module: str
    parameter: str
    is_transposed: bool

    @property
    def name(self) -> str:
        """The parameter's name in the state dict."""
        return f"{self.module}.{self.parameter}"


def shape_of_rows(weight: torch.Tensor, place: Place) -> torch.Size:
    """The sizes [..., N, K] of a weight of the model."""
    return (weight.transpose(-2, -1) if place.is_transposed else weight).shape


@dataclass(frozen=True)
class ScaledRows:
    """A weight in FP8. values: [..., N, K] in e4m3; scales: [..., N, 1] in float32, or one for each
    block of 128 x 128. Or one in MXFP4, as `multiply_fp4_groups` takes it.

    rounded: rows with numbers that e4m3 does not have, where they were counted.
    """

    values: torch.Tensor
    scales: torch.Tensor
    rounded: int = 0


Make = Callable[[torch.Tensor, bool, torch.device], ScaledRows]
"""Makes a weight in few bits of (the weight, whether it is transposed, the device for it)."""

Shards = Callable[[str, torch.Tensor], Iterable[torch.Tensor]]
"""The shards that a weight of some name is cut into, one for each rank."""


def _whole(name: str, weight: torch.Tensor) -> Iterable[torch.Tensor]:
    return [weight]


def places(model: PreTrainedModel, shards: Shards = _whole) -> list[Place]:
    """Every weight of the model that becomes FP8, in the order of its modules.

    shards: how the model will be cut: every rank's shard of a weight that becomes FP8 can.
    """
    found: list[Place] = []
    experts: list[Place] = []
    all_known = True
    module: Any
    for name, module in _parts_of_layers(model):
        if type(module) in (nn.Linear, Conv1D):
            if not STAY & set(name.split(".")) and fit(shards, f"{name}.weight", module.weight):
                found.append(Place(name, "weight", type(module) is Conv1D))
        elif is_known(module):
            for projection in projections(module):
                weight = getattr(module, projection)
                all_known &= fit(shards, f"{name}.{projection}", weight)
                experts.append(Place(name, projection, module.is_transposed))
    return found + (experts if all_known else [])  # one implementation serves all of a model's


def places_of_blocks(model: PreTrainedModel) -> list[Place]:
    """Those of `places` that a GPU multiplies in FP8 by blocks."""
    return [
        place
        for place in places(model)
        if not place.is_transposed
        and not any(size % BLOCK for size in model.get_parameter(place.name).shape[-2:])
    ]


def places_of_fp4(model: PreTrainedModel, name: str) -> list[Place]:
    """The weights of experts, which are multiplied in MXFP4.

    name: of the model. Raises ModelError where there are none, or one is of another size.
    """
    found = [
        Place(path, projection, getattr(module, "is_transposed", False))
        for path, module in _parts_of_layers(model)
        if is_known(module)
        for projection in projections(module)
    ]
    if not found:
        raise ModelError(
            f"model {name} has no experts that could be MXFP4: leave out --quantization {FP4}"
        )
    for place in found:
        size = shape_of_rows(model.get_parameter(place.name), place)[-1]
        if size % GROUP:
            raise ModelError(
                f"model {name}: {place.name} has rows of {size} numbers, and MXFP4 has a scale for "
                f"each {GROUP} of them: leave out --quantization {FP4}"
            )
    return found


def _parts_of_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """The modules of the decoder layers: those of an image's encoder are not among them."""
    decoder = model.get_decoder()
    own = {id(module) for module in decoder.modules()} if decoder is not None else set()
    layers = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, GradientCheckpointingLayer)
    }
    inner = {name: module for name, module in layers.items() if id(module) in own}
    for name, layer in (inner or layers).items():
        yield from layer.named_modules(prefix=name)


def fit(shards: Shards, name: str, weight: torch.Tensor) -> bool:
    """Whether tensor cores take every rank's shard of a weight."""
    sizes = [size for shard in shards(name, weight) for size in shard.shape[-2:]]
    return all(size % MULTIPLE == 0 for size in sizes)


def quantise(
    weight: torch.Tensor,
    is_transposed: bool,
    device: torch.device,
    largest: torch.Tensor | None = None,
    powers: bool = False,
) -> ScaledRows:
    """`begin_quantising`, and then `refuse_infinite`."""
    rows = begin_quantising(weight, is_transposed, device, largest, powers)
    refuse_infinite(rows)
    return rows


def begin_quantising(
    weight: torch.Tensor,
    is_transposed: bool,
    device: torch.device,
    largest: torch.Tensor | None = None,
    powers: bool = False,
) -> ScaledRows:
    """A weight in FP8 on the device, piece by piece: beside the result it takes next to nothing.

    A GPU may not be done with it yet: whether it is finite is asked when all weights are on their
    way, so that the next one is read meanwhile.

    weight: [..., N, K], or [..., K, N] if transposed, on any device. largest: [..., N, 1], the
    largest absolute numbers of rows of which the weight has a shard; by default its own. powers:
    scales are powers of two, and rows that e4m3 holds only rounded are counted.
    """
    if is_transposed:
        weight = weight.transpose(-2, -1)
    rows = weight.flatten(0, -2)
    values = torch.empty(rows.shape, dtype=E4M3, device=device)
    scales = torch.empty((len(rows), 1), dtype=torch.float32, device=device)
    step = math.ceil(_PIECE / rows.shape[1])
    to_rows = quantise_rows_by_powers if powers else quantise_rows
    rounded = 0
    for start in range(0, len(rows), step):
        piece = slice(start, start + step)
        of_whole = None if largest is None else largest.view(-1, 1)[piece]
        own = on_device(rows[piece], device)
        values[piece], scales[piece] = to_rows(own, of_whole)
        if powers:
            rounded += int((values[piece].float() * scales[piece] != own).any(-1).sum())
    return ScaledRows(values.view(weight.shape), scales.view(*weight.shape[:-1], 1), rounded)


def refuse_infinite(rows: ScaledRows) -> None:
    """Raise ModelError, whose message lacks the weight's name, for numbers that are not finite."""
    if not rows.scales.isfinite().all():
        raise ModelError("holds NaN or infinite numbers")


def quantise_in_blocks(
    weight: torch.Tensor, is_transposed: bool, device: torch.device
) -> ScaledRows:
    """The same by blocks of 128 x 128, of a weight [..., N, K] whose sizes are multiples of it."""
    assert not is_transposed
    values = torch.empty(weight.shape, dtype=E4M3, device=device)
    sizes = [size // BLOCK for size in weight.shape[-2:]]
    scales = torch.empty(*weight.shape[:-2], *sizes, dtype=torch.float32, device=device)
    flat = (each.view(-1, *each.shape[-2:]) for each in (weight, values, scales))
    for own, numbers, factors in zip(*flat, strict=True):
        made = quantise_blocks(own.to(device))
        numbers.copy_(made[0])
        factors.copy_(made[1])
    return ScaledRows(values, scales)


def quantise_in_fp4(weight: torch.Tensor, is_transposed: bool, device: torch.device) -> ScaledRows:
    """The same in MXFP4, of a weight of experts."""
    if is_transposed:
        weight = weight.transpose(-2, -1)
    made = (rounded(own.to(device), LARGEST_SCALE) for own in weight)
    return pack_experts(made, weight.shape, device)


def pack_experts(
    experts: Iterable[tuple[torch.Tensor, torch.Tensor]],
    shape: Sequence[int],
    device: torch.device,
) -> ScaledRows:
    """Bring a weight in MXFP4 into the order of its kernel, one expert after the other.

    experts: blocks [N, K / 2] and scales [N, K / 32] of each; shape: [E, N, K].
    """
    rows = empty_fp4(shape, device)
    for words, scales, parts in zip(rows.values, rows.scales, experts, strict=True):
        packed = pack(*parts)
        words.copy_(packed[0])
        scales.copy_(packed[1])
    return rows


def empty_fp4(shape: Sequence[int], device: torch.device) -> ScaledRows:
    """Memory for a weight [E, N, K] in MXFP4, which holds nothing yet."""
    experts, outputs, inputs = shape
    sides = (outputs, inputs // 2), (outputs, inputs // GROUP)
    one = pack(*(torch.empty(side, dtype=torch.uint8, device="meta") for side in sides))
    words, scales = (
        torch.empty(experts, *part.shape, dtype=part.dtype, device=device) for part in one
    )
    return ScaledRows(words, scales)


def install(model: PreTrainedModel, place: Place, rows: ScaledRows) -> None:
    """Put a weight in FP8 or MXFP4 where the model has it."""
    module: Any = model.get_submodule(place.module)
    if is_known(module):
        scale = nn.Parameter(rows.scales, requires_grad=False)
        setattr(module, place.parameter, nn.Parameter(rows.values, requires_grad=False))
        module.register_parameter(f"{place.parameter}_scale", scale)
        model.set_experts_implementation(IMPLEMENTATION)
    else:
        bias = None if module.bias is None else module.bias.data
        kind = FP8BlockLinear if are_of_blocks(rows.values, rows.scales) else FP8Linear
        model.set_submodule(place.module, kind(rows.values, rows.scales, bias))


def check(found: list[Place], model: PreTrainedModel, name: str, device: torch.device) -> None:
    """Raise ModelError where a model has nothing to quantise, and what `check_device` does."""
    if not found:
        raise ModelError(
            f"model {name} has no layers that could be FP8: leave out --quantization fp8"
        )
    check_device(device, experts=any(is_known(model.get_submodule(p.module)) for p in found))


def made_by(
    quantization: str, model: PreTrainedModel, name: str, device: torch.device
) -> tuple[list[Place], Make]:
    """The weights of a model that are to be in few bits, and what makes one of them.

    name: of the model, for messages. Raises what `check` or `check_fp4_products` does.
    """
    if quantization == FP4:
        check_fp4_products(device, model.dtype)
        return places_of_fp4(model, name), quantise_in_fp4
    blocks = quantization == BLOCKS
    found = places_of_blocks(model) if blocks else places(model)
    check(found, model, name, device)
    return found, quantise_in_blocks if blocks else quantise


@contextmanager
def naming(model: str, weight: str) -> Iterator[None]:
    """Put model and weight in front of what is wrong with the numbers."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"model {model}: {weight} {error}: the checkpoint is broken") from None


def quantise_in_place(model: PreTrainedModel, name: str, device: torch.device) -> PreTrainedModel:
    """Turn a model's large weights into FP8, all of it on the device.

    name: of the model, for messages. Raises ModelError and UsageError where it has no such weights,
    where their numbers are not finite, and for a device without FP8.
    """
    found = places(model)
    check(found, model, name, device)
    for place in found:
        with naming(name, place.name):
            weight = model.get_parameter(place.name).data
            install(model, place, quantise(weight, place.is_transposed, device))
    warn_of_small_share(model, name)
    return move_to(model, device)


def warn_of_small_share(model: PreTrainedModel, name: str) -> None:
    """Warn where most of the layers' weights are none that can be FP8, as some experts are."""
    weights = [w for _, part in _parts_of_layers(model) for w in part.parameters(recurse=False)]
    share = sum(w.numel() for w in weights if w.dtype is E4M3) / sum(w.numel() for w in weights)
    if share < _SMALL_SHARE:
        warnings.warn(
            f"only {share:.0%} of the weights in the layers of model {name} are FP8: the others "
            "are of kinds that stay as they are",
            stacklevel=2,
        )
